// Measures the admin page of a full server under load: bytes over the wire, first paint, and the
// processor time that the open page costs the server.
//
// Usage: NODE_PATH=.clients/node/node_modules node benches/admin_page.js TODANA
"use strict";

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const { chromium } = require("playwright-core");
const { CHROMIUM, start } = require("../tests/browser/started_server.js");

const [todana] = process.argv.slice(2);
const OPEN_S = 30;
const ROUNDS = 3;

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const median = (all) => [...all].sort((a, b) => a - b)[all.length >> 1];

/** Returns the processor seconds of a process, all threads together. */
function cpu(pid) {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

function bench(port, ...options) {
  const child = spawn(todana, ["bench", `127.0.0.1:${port}`, "--keys", "1000000", ...options], { stdio: "ignore" });
  return { child, ended: new Promise((resolve) => child.once("exit", resolve)) };
}

async function main() {
  const server = await start(todana, "-m", "1024");
  await bench(server.port, "--load-only").ended;
  const browser = await chromium.launch(CHROMIUM);
  const [paints, sizes, shares] = [[], [], []];
  for (let round = 0; round < ROUNDS; round += 1) {
    const load = bench(server.port, "--duration", "5s");
    const page = await browser.newPage();
    await page.goto(server.page);
    await page.locator("canvas").first().waitFor();
    const { paint, size } = await page.evaluate(() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
      size: ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind)).reduce((all, one) => all + one.transferSize, 0),
    }));
    paints.push(paint);
    sizes.push(size);
    await load.ended;
    const open = cpu(server.child.pid);
    await sleep(OPEN_S);
    const closed = cpu(server.child.pid);
    await page.close();
    await sleep(1);
    const idle = cpu(server.child.pid);
    await sleep(OPEN_S);
    shares.push((closed - open - (cpu(server.child.pid) - idle)) / OPEN_S);
  }
  await browser.close();
  server.child.kill();
  console.log(`first paint ${median(paints).toFixed(0)} ms, ${median(sizes)} bytes, page open ${(median(shares) * 100).toFixed(2)} % of a core`);
}

main();
