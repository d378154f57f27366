<?php
// Tests php-memcached (libmemcached) with a running server. TODANA_ADDRESS is its address.
// TODANA_PROTOCOL selects the protocol: text or binary.

declare(strict_types=1);

// A warning ends the program, like a wrong value.
set_error_handler(function ($level, $message, $file, $line) {
    throw new ErrorException($message, 0, $level, $file, $line);
});

$address = getenv('TODANA_ADDRESS');
$binary = getenv('TODANA_PROTOCOL') === 'binary';
[$host, $port] = explode(':', $address);
$client = new Memcached();
$client->setOptions([
    Memcached::OPT_BINARY_PROTOCOL => $binary,
    Memcached::OPT_TCP_NODELAY => true,
    Memcached::OPT_POLL_TIMEOUT => 10000,
]);
$client->addServer($host, (int) $port);

$checks = [
    'any bytes come back' => function () use ($client) {
        $every_byte = str_repeat(implode('', array_map('chr', range(0, 255))), 16);
        foreach (['value', '', $every_byte, "a\r\nEND\r\nVALUE x 0 1\r\n"] as $value) {
            equal($client->set('key', $value), true);
            equal($client->get('key'), $value);
        }
        equal($client->get('absent'), false);
        equal($client->getResultCode(), Memcached::RES_NOTFOUND);
    },
    'PHP values come back' => function () use ($client) {
        foreach ([42, 2 ** 40, -1, 2.5, true, false, null, ['a' => [1, 'two', null]]] as $value) {
            equal($client->set('key', $value), true);
            equal($client->get('key'), $value);
            equal($client->getResultCode(), Memcached::RES_SUCCESS);
        }
    },
    'a million bytes come back' => function () use ($client) {
        // The client compresses the second value.
        foreach ([random_bytes(1_000_000), str_repeat('all work and no play ', 50_000)] as $value) {
            equal($client->set('large', $value), true);
            equal($client->get('large'), $value);
        }
    },
    'a value above the limit is refused' => function () use ($client) {
        equal($client->set('large', random_bytes(2 << 20)), false);
        equal($client->getResultCode(), Memcached::RES_E2BIG);
        equal($client->get('large'), false);
    },
    'add, replace, append, prepend' => function () use ($client) {
        // The client cannot append to a compressed value.
        $client->setOption(Memcached::OPT_COMPRESSION, false);
        equal($client->replace('k', '1'), false);
        equal($client->append('k', '1'), false);
        equal($client->getResultCode(), Memcached::RES_NOTSTORED);
        equal($client->prepend('k', '1'), false);
        equal($client->add('k', 'b'), true);
        equal($client->add('k', 'x'), false);
        equal($client->append('k', 'c'), true);
        equal($client->prepend('k', 'a'), true);
        equal($client->get('k'), 'abc');
        equal($client->replace('k', 'z'), true);
        equal($client->get('k'), 'z');
        $client->setOption(Memcached::OPT_COMPRESSION, true);
    },
    'counting' => function () use ($client, $binary) {
        equal($client->increment('n'), false);
        equal($client->getResultCode(), Memcached::RES_NOTFOUND);
        $client->set('n', 10);
        equal($client->increment('n', 5), 15);
        equal($client->decrement('n'), 14);
        equal($client->decrement('n', 20), 0);
        equal($client->get('n'), 0);
        if ($binary) {
            // Only the binary protocol can create a counter.
            equal($client->increment('new', 1, 100, 1000), 100);
            near(seconds_left('new'), 1000);
            equal($client->increment('new', 1, 100, 1000), 101);
            equal($client->decrement('newer', 1, 100), 100);
        }
        $client->set('word', 'word');
        equal($client->increment('word'), false);
    },
    'compare and set' => function () use ($client) {
        $client->set('k', 'one');
        ['value' => $value, 'cas' => $version] = $client->get('k', null, Memcached::GET_EXTENDED);
        equal($value, 'one');
        equal($client->cas($version, 'k', 'two'), true);
        equal($client->cas($version, 'k', 'three'), false);
        equal($client->getResultCode(), Memcached::RES_DATA_EXISTS);
        equal($client->get('k'), 'two');
        equal($client->cas($version, 'absent', 'three'), false);
        equal($client->getResultCode(), Memcached::RES_NOTFOUND);
    },
    'delete' => function () use ($client) {
        equal($client->delete('k'), false);
        equal($client->getResultCode(), Memcached::RES_NOTFOUND);
        $client->set('k', 'v');
        equal($client->delete('k'), true);
        equal($client->get('k'), false);
    },
    'many at once' => function () use ($client) {
        $values = [];
        for ($n = 0; $n < 500; $n++) {
            $values["key:$n"] = str_repeat((string) $n, $n % 7);
        }
        $keys = array_keys($values);
        equal($client->setMulti($values, 1000), true);
        equal($client->getMulti([...$keys, 'absent'], Memcached::GET_PRESERVE_ORDER), [...$values, 'absent' => null]);
        $extended = $client->getMulti($keys, Memcached::GET_EXTENDED);
        // Each server counts its own versions.
        if (getenv('TODANA_SERVERS') === false) {
            equal(count(array_unique(array_column($extended, 'cas'))), 500);
        }
        equal($client->deleteMulti([...$keys, 'absent'])['absent'], Memcached::RES_NOTFOUND);
        equal($client->getMulti($keys), []);
    },
    'without waiting' => function () use ($client, $host, $port, $binary) {
        $eager = new Memcached();
        $eager->setOptions([
            Memcached::OPT_BINARY_PROTOCOL => $binary,
            Memcached::OPT_NO_BLOCK => true,
            Memcached::OPT_BUFFER_WRITES => true,
            Memcached::OPT_POLL_TIMEOUT => 10000,
        ]);
        $eager->addServer($host, (int) $port);
        for ($n = 1; $n <= 1000; $n++) {
            $eager->set("eager:$n", $n);
        }
        equal($eager->get('eager:1'), 1);
        equal($eager->get('eager:1000'), 1000);
        equal($client->get('eager:500'), 500);
    },
    'delayed' => function () use ($client) {
        $client->setMulti(['a' => 1, 'b' => 2]);
        equal($client->getDelayed(['a', 'absent', 'b'], true), true);
        equal(array_column($client->fetchAll(), 'value', 'key'), ['a' => 1, 'b' => 2]);
    },
    'time to live and touch' => function () use ($client, $binary) {
        // In the binary protocol, times are never negative.
        foreach ($binary ? [time() - 100] : [-1, time() - 100] as $gone) {
            equal($client->set('k', 'v', $gone), true);
            equal($client->get('k'), false);
        }
        equal($client->touch('k', 1000), false);
        equal($client->getResultCode(), Memcached::RES_NOTFOUND);
        $client->set('k', 'v');
        equal(seconds_left('k'), -1);
        $client->set('k', 'v', 1000);
        near(seconds_left('k'), 1000);
        $client->set('k', 'v', time() + 4_000_000);
        near(seconds_left('k'), 4_000_000);
        equal($client->touch('k', 500), true);
        near(seconds_left('k'), 500);
        equal($client->get('k'), 'v');
        equal($client->touch('k', time() - 100), true);
        equal($client->get('k'), false);
    },
    'long keys and foreign letters' => function () use ($client, $binary) {
        // In the text protocol, the client itself refuses the second key.
        foreach ($binary ? [str_repeat('k', 250), 'schlüssel:日本'] : [str_repeat('k', 250)] as $key) {
            equal($client->set($key, 'v'), true);
            equal($client->get($key), 'v');
        }
    },
    'version, statistics, flush' => function () use ($client, $address) {
        equal(preg_match('/^\d+\.\d+\.\d+$/', $client->getVersion()[$address]), 1);
        equal($client->getStats()[$address]['pid'] > 0, true);
        $client->set('k', 'v');
        equal($client->flush(), true);
        equal($client->get('k'), false);
    },
];

$done = 0;
foreach ($checks as $checking => $check) {
    equal($client->flush(), true);
    $check();
    $done++;
}
echo "$done of $done\n";

// Returns the time to live that the server has stored. -1 means that the record does not expire.
function seconds_left(string $key): int
{
    $connection = stream_socket_client('tcp://' . getenv('TODANA_ADDRESS'), $code, $message, 10);
    fwrite($connection, "mg $key t\r\n");
    equal(preg_match('/^HD t(-?\d+)\r\n$/', fgets($connection), $found), 1);
    return (int) $found[1];
}

// Allows a difference of less than 100 seconds, because clocks are rounded.
function near(int $got, int $want): void
{
    equal(abs($got - $want) < 100 ? $want : $got, $want);
}

function equal(mixed $got, mixed $want): void
{
    global $checking;
    if ($got !== $want) {
        $show = fn ($value) => substr(json_encode($value, JSON_INVALID_UTF8_SUBSTITUTE), 0, 200);
        $line = debug_backtrace()[0]['line'];
        fwrite(STDERR, "$checking: got {$show($got)}, not {$show($want)}, at line $line\n");
        exit(1);
    }
}
