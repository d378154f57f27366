# Uses the archive /archive.tar.gz, in a minimal Debian without a network.

is() {
    [ "$1" = "$2" ] || { echo "expected: $2, but got: $1" >&2; exit 1; }
}

tar -xf /archive.tar.gz
program=$(echo /todana-*/todana)
is "$("$program" version | cut -d' ' -f1)" todana
mkfifo /banner
"$program" serve >/banner &
server=$!
# Opening waits for the server, and its first line for the data.
exec 3</banner
read -r line <&3
"$program" set hello world
is "$("$program" get hello)" world
kill "$server"
wait "$server"
