<?php
// php-memcached (libmemcached) with a login, against a running server with SASL, whose address is in TODANA_ADDRESS.

declare(strict_types=1);

[$host, $port] = explode(':', getenv('TODANA_ADDRESS'));

function client(string $user, string $password): Memcached
{
    global $host, $port;
    $client = new Memcached();
    $client->setOption(Memcached::OPT_BINARY_PROTOCOL, true);
    $client->setSaslAuthData($user, $password);
    $client->addServer($host, (int) $port);
    return $client;
}

$known = client(getenv('TODANA_USER'), getenv('TODANA_PASSWORD'));
if (!$known->set('php', 'value') || $known->get('php') !== 'value') {
    echo 'not let in: ', $known->getResultMessage(), "\n";
    exit(1);
}
$stranger = client(getenv('TODANA_USER'), getenv('TODANA_PASSWORD') . 'x');
if ($stranger->set('php', 'other') || $stranger->getResultCode() !== Memcached::RES_AUTH_FAILURE) {
    echo 'a stranger was told: ', $stranger->getResultMessage(), "\n";
    exit(1);
}
echo "2 of 2\n";
