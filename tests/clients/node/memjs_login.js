// Tests memjs's login with a running server that requires SASL. TODANA_ADDRESS is its address.
'use strict';

const assert = require('node:assert');
const memjs = require('memjs');

const { TODANA_ADDRESS: address, TODANA_USER: username, TODANA_PASSWORD: password } = process.env;
const options = { retries: 1, timeout: 10, logger: { log() {} } };

async function main() {
  const known = memjs.Client.create(address, { ...options, username, password });
  await known.set('memjs', 'value', {});
  assert.strictEqual((await known.get('memjs')).value.toString(), 'value');
  known.close();
  const stranger = memjs.Client.create(address, { ...options, username, password: `${password}x` });
  await assert.rejects(stranger.get('memjs'));
  stranger.close();
  console.log('2 of 2');
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
