# Installs, upgrades, removes and purges the Debian package. Runs in a minimal Debian that has the
# packages /package.deb and /upgrade.deb, but no network.

# The command of the unit, which no systemd starts here.
start() {
    command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/todana.service)
    rm -f /banner
    mkfifo /banner
    setpriv --reuid=todana --regid=todana --init-groups $command >/banner 2>>/var/log/todana/todana.log &
    server=$!
    # Opening waits for the server, and its first line for the data.
    exec 3</banner
    read -r line <&3
}

stop() {
    kill "$server"
    wait "$server"
}

is() {
    [ "$1" = "$2" ] || { echo "expected: $2, but got: $1" >&2; exit 1; }
}

dpkg --install /package.deb
start
is "$(todana ping | cut -d' ' -f1)" 127.0.0.1:11211
todana set hello world
is "$(todana get hello)" world
is "$(stat -c %U:%a /var/lib/todana)" todana:750
[ -e /etc/systemd/system/multi-user.target.wants/todana.service ]
[ -s /usr/share/bash-completion/completions/todana ]
[ -s /usr/share/zsh/vendor-completions/_todana ]
[ -s /usr/share/fish/vendor_completions.d/todana.fish ]
todana config check /etc/todana/todana.toml

# The server continues with a log that was rotated.
echo "a line" >>/var/log/todana/todana.log
logrotate --force /etc/logrotate.d/todana
is "$(tail -n 1 /var/log/todana/todana.log.1)" "a line"
[ ! -s /var/log/todana/todana.log ]
kill -HUP "$server"
todana set after rotation
stop

# An upgrade keeps records and a changed configuration.
echo '# a change' >>/etc/todana/todana.toml
dpkg --install /upgrade.deb
is "$(dpkg-query --show --showformat='${Version}' todana | sed 's/.*+//')" upgrade
is "$(tail -n 1 /etc/todana/todana.toml)" '# a change'
start
is "$(todana get hello after)" "$(printf 'world\nrotation')"
stop

dpkg --remove todana
[ ! -e /usr/bin/todana ]
[ -e /etc/todana/todana.toml ]
dpkg --install /package.deb
start
is "$(todana get hello)" world
stop

dpkg --purge todana
for path in /var/lib/todana /var/log/todana /etc/todana /etc/logrotate.d/todana /usr/bin/todana; do
    [ ! -e "$path" ] || { echo "$path: still exists after a purge" >&2; exit 1; }
done
