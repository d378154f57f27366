# Tests Cache::Memcached::Fast with a running server. TODANA_ADDRESS is its address.

use strict;
use warnings;
use utf8;
use Cache::Memcached::Fast;
use IO::Socket::INET;

# The prototypes impose scalar context, in which a get of a missing key returns undef and not an
# empty list.
sub equal($$);
sub near($$);

my $address = $ENV{TODANA_ADDRESS};
my $client = Cache::Memcached::Fast->new({
    servers            => [$address],
    connect_timeout    => 10,
    io_timeout         => 10,
    compress_threshold => 100_000,
    # The client's limit is above the server's, so that large values reach the server.
    max_size           => 4 << 20,
});

my @checks = (
    'any bytes come back' => sub {
        my $every_byte = join('', map { chr } 0 .. 255) x 16;
        for my $value ('value', '', $every_byte, "a\r\nEND\r\nVALUE x 0 1\r\n") {
            equal($client->set('key', $value), 1);
            equal($client->get('key'), $value);
        }
        equal($client->get('absent'), undef);
    },
    'structures come back' => sub {
        equal($client->set('structure', { list => [1, 'two'] }), 1);
        my $structure = $client->get('structure');
        equal("@{ $structure->{list} }", '1 two');
    },
    'a million bytes come back' => sub {
        srand(1);
        my $random = pack('N*', map { int rand 4294967296 } 1 .. 250_000);
        # The client compresses the second value.
        for my $value ($random, 'all work and no play ' x 50_000) {
            equal($client->set('large', $value), 1);
            equal($client->get('large'), $value);
        }
    },
    'a value above the limit is refused' => sub {
        srand(2);
        my $random = pack('N*', map { int rand 4294967296 } 1 .. 600_000);
        equal($client->set('large', $random), undef);
        equal($client->get('large'), undef);
    },
    'add, replace, append, prepend' => sub {
        equal($client->replace('k', '1'), '');
        equal($client->append('k', '1'), '');
        equal($client->prepend('k', '1'), '');
        equal($client->add('k', 'b'), 1);
        equal($client->add('k', 'x'), '');
        equal($client->append('k', 'c'), 1);
        equal($client->prepend('k', 'a'), 1);
        equal($client->get('k'), 'abc');
        equal($client->replace('k', 'z'), 1);
        equal($client->get('k'), 'z');
    },
    'counting' => sub {
        equal($client->incr('n'), '');
        $client->set('n', 10);
        equal($client->incr('n', 5), 15);
        equal($client->decr('n'), 14);
        # The client returns 0 as '0E0', which is true in Perl.
        equal($client->decr('n', 20), '0E0');
        $client->set('n', '18446744073709551615');
        equal($client->incr('n', 2), 1);
        $client->set('word', 'word');
        equal($client->incr('word'), undef);
    },
    'compare and set' => sub {
        equal($client->gets('k'), undef);
        equal($client->cas('k', 1, 'v'), '');
        $client->set('k', 'one');
        my ($version, $value) = @{ $client->gets('k') };
        equal($value, 'one');
        equal($client->cas('k', $version, 'two'), 1);
        equal($client->cas('k', $version, 'three'), '');
        equal($client->get('k'), 'two');
    },
    'delete' => sub {
        equal($client->delete('k'), '');
        $client->set('k', 'v');
        equal($client->delete('k'), 1);
        equal($client->get('k'), undef);
    },
    'many at once' => sub {
        my %values = map { ("key:$_" => "$_" x ($_ % 7)) } 0 .. 499;
        my $stored = $client->set_multi(map { [$_, $values{$_}] } keys %values);
        equal(scalar(grep { $_ } values %$stored), 500);
        my $found = $client->get_multi(keys %values, 'absent');
        equal(scalar(keys %$found), 500);
        equal($found->{$_}, $values{$_}) for keys %values;
        $client->delete_multi(keys %values);
        equal(scalar(keys %{ $client->get_multi(keys %values) }), 0);
    },
    'without waiting' => sub {
        my $eager = Cache::Memcached::Fast->new({ servers => [$address], io_timeout => 10, nowait => 1 });
        $eager->set("eager:$_", $_) for 1 .. 1000;
        $eager->nowait_push;
        equal($client->get('eager:1'), 1);
        equal($client->get('eager:1000'), 1000);
        # This client sends noreply.
        my $quiet = Cache::Memcached::Fast->new({ servers => [{ address => $address, noreply => 1 }], io_timeout => 10 });
        $quiet->set("quiet:$_", $_) for 1 .. 1000;
        equal($quiet->get('quiet:1000'), 1000);
    },
    'time to live and touch' => sub {
        for my $gone (-1, time - 100) {
            equal($client->set('k', 'v', $gone), 1);
            equal($client->get('k'), undef);
        }
        equal($client->touch('k', 1000), '');
        $client->set('k', 'v');
        equal(seconds_left('k'), -1);
        $client->set('k', 'v', 1000);
        near(seconds_left('k'), 1000);
        $client->set('k', 'v', time + 4_000_000);
        near(seconds_left('k'), 4_000_000);
        equal($client->touch('k', 500), 1);
        near(seconds_left('k'), 500);
        equal($client->gat(700, 'k'), 'v');
        near(seconds_left('k'), 700);
        equal($client->touch('k', -1), 1);
        equal($client->get('k'), undef);
    },
    'long keys and foreign letters' => sub {
        my $foreign = 'schlüssel:日本';
        utf8::encode($foreign);
        for my $key ('k' x 250, $foreign) {
            equal($client->set($key, 'v'), 1);
            equal($client->get($key), 'v');
        }
    },
    'versions and flush' => sub {
        equal($client->server_versions->{$address} =~ /^\d+\.\d+\.\d+$/ ? 1 : 0, 1);
        $client->set('k', 'v');
        equal($client->flush_all->{$address}, 1);
        equal($client->get('k'), undef);
    },
);

my $checking;
my $done = 0;
while (@checks) {
    ($checking, my $run) = splice @checks, 0, 2;
    equal($client->flush_all->{$address}, 1);
    $run->();
    $done++;
}
print "$done of $done\n";

# Returns the time to live that the server has stored. -1 means that the record does not expire.
sub seconds_left {
    my ($key) = @_;
    my $connection = IO::Socket::INET->new(PeerAddr => $address, Timeout => 10) or die "$address: $!";
    print $connection "mg $key t\r\n";
    my $reply = <$connection>;
    my ($seconds) = $reply =~ /^HD t(-?\d+)\r\n$/ or die "$checking: $reply";
    return $seconds;
}

# Allows a difference of less than 100 seconds, because clocks are rounded.
sub near($$) {
    my ($got, $want) = @_;
    equal($got, abs($got - $want) < 100 ? $got : $want);
}

sub equal($$) {
    my ($got, $want) = @_;
    return if defined $got ? defined $want && $got eq $want : !defined $want;
    my (undef, undef, $line) = caller;
    ($got, $want) = map { defined $_ ? substr($_, 0, 100) : '(none)' } $got, $want;
    die "$checking: got '$got', not '$want', at line $line\n";
}
