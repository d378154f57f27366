# Runs a container image as an engine does. $1 is the folder of its files; $user, $command and
# $health come from its configuration.

root=$1

inside="chroot --userspec=$user --groups= $root"

fail() {
    echo "$1" >&2
    exit 1
}

# Only the volume of the data can be written to. An engine gives it the owner of the image's folder.
owner=$(stat -c %u:%g "$root/var/lib/todana")
mount -t tmpfs -o mode=750 tmpfs "$root/var/lib/todana"
chown "$owner" "$root/var/lib/todana"
mount -o remount,bind,ro "$root"

pipe=$(mktemp -u)
mkfifo "$pipe"
$inside $command >"$pipe" &
server=$!
# Opening waits for the server, and its first line for the data.
exec 3<"$pipe"
rm "$pipe"
read -r line <&3

$inside $health
$inside /usr/bin/todana set hello world
[ "$($inside /usr/bin/todana get hello)" = world ] || fail "get: another value"
[ "$(stat -c %u:%g "$root/proc/$server")" = "$user" ] || fail "the server runs as another user"
[ -n "$(ls "$root/var/lib/todana")" ] || fail "the volume is empty"
if $inside /usr/bin/todana man /etc/todana 2>/dev/null; then
    fail "the root can be written to"
fi
kill "$server"
wait "$server"
if $inside $health 2>/dev/null; then
    fail "the health check succeeds without a server"
fi
