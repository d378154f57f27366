// Tests memjs with a running server. TODANA_ADDRESS is its address. memjs has only the binary
// protocol, no cas, and no get of several keys. Its prepend is not tested, because it appends.
'use strict';

const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const net = require('node:net');
const memjs = require('memjs');

const address = process.env.TODANA_ADDRESS;
// The client would log the errors that these checks cause.
const logger = { log() {} };
const client = memjs.Client.create(address, { timeout: 10, retries: 1, logger });

const get = async (key) => (await client.get(key)).value;
const now = () => Math.floor(Date.now() / 1000);
// Allows a difference of less than 100 seconds, because clocks are rounded.
const near = (got, wanted) => assert.ok(Math.abs(got - wanted) < 100, `${got} is not about ${wanted}`);

const checks = {
  async 'any bytes come back'() {
    const everyByte = Buffer.alloc(256 * 16, Buffer.from(Array.from({ length: 256 }, (_, n) => n)));
    for (const value of ['value', '', everyByte, 'a\r\nEND\r\nVALUE x 0 1\r\n']) {
      assert.equal(await client.set('key', value), true);
      assert.deepEqual(await get('key'), Buffer.from(value));
    }
    assert.equal(await get('absent'), null);
  },

  async 'a million bytes come back'() {
    const value = crypto.randomBytes(1_000_000);
    assert.equal(await client.set('large', value), true);
    assert.deepEqual(await get('large'), value);
  },

  async 'a value above the limit is refused'() {
    await assert.rejects(client.set('large', Buffer.alloc(2 << 20)), /Value too large/);
    assert.equal(await get('large'), null);
  },

  async 'add, replace, append'() {
    assert.equal(await client.replace('k', '1'), false);
    await assert.rejects(client.append('k', '1'), /Item not stored/);
    assert.equal(await client.add('k', 'a'), true);
    assert.equal(await client.add('k', 'x'), false);
    assert.equal(await client.append('k', 'b'), true);
    assert.equal(String(await get('k')), 'ab');
    assert.equal(await client.replace('k', 'z'), true);
    assert.equal(String(await get('k')), 'z');
  },

  async counting() {
    assert.deepEqual(await client.increment('n', 5, { initial: 10, expires: 1000 }), { success: true, value: 10 });
    near(await secondsLeft('n'), 1000);
    assert.deepEqual(await client.increment('n', 5), { success: true, value: 15 });
    assert.deepEqual(await client.decrement('n', 1, {}), { success: true, value: 14 });
    assert.deepEqual(await client.decrement('n', 20, {}), { success: true, value: 0 });
    await client.set('n', '18446744073709551615');
    assert.deepEqual(await client.increment('n', 2), { success: true, value: 1 });
    await client.set('word', 'word');
    await assert.rejects(client.increment('word', 1), /non-numeric value/);
  },

  async delete() {
    assert.equal(await client.delete('k'), false);
    await client.set('k', 'v');
    assert.equal(await client.delete('k'), true);
    assert.equal(await get('k'), null);
  },

  async 'many at once'() {
    const keys = Array.from({ length: 500 }, (_, n) => `key:${n}`);
    const values = keys.map((_, n) => String(n).repeat(n % 7));
    const stored = await Promise.all(keys.map((key, n) => client.set(key, values[n])));
    assert.ok(stored.every((one) => one === true));
    const found = await Promise.all(keys.map(get));
    assert.deepEqual(found.map(String), values);
  },

  async 'time to live and touch'() {
    await client.set('k', 'v', { expires: now() - 100 });
    assert.equal(await get('k'), null);
    assert.equal(await client.touch('k', 1000), false);
    await client.set('k', 'v');
    assert.equal(await secondsLeft('k'), -1);
    await client.set('k', 'v', { expires: 1000 });
    near(await secondsLeft('k'), 1000);
    await client.set('k', 'v', { expires: now() + 4_000_000 });
    near(await secondsLeft('k'), 4_000_000);
    assert.equal(await client.touch('k', 500), true);
    near(await secondsLeft('k'), 500);
    assert.equal(String(await get('k')), 'v');
    assert.equal(await client.touch('k', now() - 100), true);
    assert.equal(await get('k'), null);
  },

  async 'long keys and foreign letters'() {
    for (const key of ['k'.repeat(250), 'schlüssel:日本']) {
      await client.set(key, 'v');
      assert.equal(String(await get(key)), 'v');
    }
  },

  async 'statistics and flush'() {
    const stats = await new Promise((resolve, reject) => {
      client.stats((error, _, all) => (error ? reject(error) : resolve(all)));
    });
    assert.ok(Number(stats.pid) > 0);
    await client.set('k', 'v');
    assert.deepEqual(await client.flush(), { [address]: true });
    assert.equal(await get('k'), null);
  },
};

// Returns the time to live that the server has stored. -1 means that the record does not expire.
function secondsLeft(key) {
  return new Promise((resolve, reject) => {
    const [host, port] = address.split(':');
    const connection = net.connect(Number(port), host, () => connection.end(`mg ${key} t\r\n`));
    let reply = '';
    connection.on('data', (data) => (reply += data));
    connection.on('error', reject);
    connection.on('end', () => {
      const found = /^HD t(-?\d+)\r\n$/.exec(reply);
      found ? resolve(Number(found[1])) : reject(new Error(reply));
    });
  });
}

async function main() {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await client.flush();
      await check();
    } catch (error) {
      console.error(`${name}: ${error.stack}`);
      process.exit(1);
    }
  }
  client.close();
  const all = Object.keys(checks).length;
  console.log(`${all} of ${all}`);
}

main();
