<?php
// Tests the login of php-memcached (libmemcached) with a running server that requires SASL.
// TODANA_ADDRESS is its address.

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
    echo 'the right password is refused: ', $known->getResultMessage(), "\n";
    exit(1);
}
$stranger = client(getenv('TODANA_USER'), getenv('TODANA_PASSWORD') . 'x');
if ($stranger->set('php', 'other') || $stranger->getResultCode() !== Memcached::RES_AUTH_FAILURE) {
    echo 'the wrong password is not refused: ', $stranger->getResultMessage(), "\n";
    exit(1);
}
echo "2 of 2\n";
