// Opens the admin page of real servers in Chromium: each view, with empty and full databases,
// hostile keys and values, a token, changes, and a server that ends.
//
// Usage: node admin_page.js TODANA FOLDER
"use strict";

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { CHROMIUM, start: startServer } = require("./started_server.js");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [todana, folder] = process.argv.slice(2);
const WAIT_MS = 30000;
const VIEWS = ["overview", "databases", "records", "hot keys", "slow requests", "connections", "replication", "figures"];
const running = new Set();

/** Starts a server, which is stopped at the end of the tests at the latest. */
async function start(...options) {
  const server = await startServer(todana, ...options);
  running.add(server.child);
  return server;
}

async function stop({ child }) {
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill();
  await ended;
  running.delete(child);
}

/** Stores records with binary keys by meta commands, and waits for all replies. */
function store(server, records) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(server.port, "127.0.0.1");
    let replies = 0;
    socket.on("error", reject);
    socket.on("data", (data) => {
      replies += data.toString("latin1").split("HD\r\n").length - 1;
      if (replies === records.length) socket.end(resolve);
    });
    for (const [key, value] of records) {
      const bytes = Buffer.from(value);
      socket.write(Buffer.concat([
        Buffer.from(`ms ${Buffer.from(key).toString("base64")} ${bytes.length} b\r\n`), bytes, Buffer.from("\r\n"),
      ]));
    }
  });
}

async function main() {
  fs.mkdirSync(folder, { recursive: true });
  const browser = await chromium.launch(CHROMIUM);
  const tests = { emptyServer, fullServer, hostileRecords, changes, checkpointAndBackup, token, lostServer, narrowScreen };
  try {
    for (const [name, test] of Object.entries(tests)) {
      const faults = [];
      const open = async (address, options = {}) => {
        const page = await browser.newPage({ viewport: { width: 1100, height: 900 }, ...options });
        page.setDefaultTimeout(WAIT_MS);
        page.on("pageerror", (error) => faults.push(error.message));
        page.on("dialog", (dialog) => faults.push(`a dialog: ${dialog.message()}`));
        page.on("request", (request) => {
          if (!request.url().startsWith("http://127.0.0.1:") && !request.url().startsWith("data:")) faults.push(request.url());
        });
        await page.goto(address);
        return page;
      };
      await test(open);
      assert.deepEqual(faults, [], name);
      console.log(`${name}: passed`);
    }
  } finally {
    await browser.close();
    for (const child of running) child.kill();
  }
}

const shot = (page, name) => page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true });

/** Fails if axe finds a serious fault of accessibility. */
async function checkAccess(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  assert.deepEqual(serious.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`), [], name);
}

async function goTo(page, view) {
  await page.getByRole("navigation").getByRole("link", { name: new RegExp(`^${view}$`, "i") }).click();
  await page.getByRole("heading", { level: 2, name: new RegExp(`^${view}$`, "i") }).waitFor();
}

async function emptyServer(open) {
  const server = await start();
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(server.page, { colorScheme });
    await page.getByText(/^running for/).waitFor();
    for (const view of VIEWS) {
      await goTo(page, view);
      if (view === "overview") await page.locator(".tile b").first().waitFor();
      if (view === "connections") await page.getByText("0 connections").waitFor();
      if (view === "figures") await page.getByRole("cell", { name: "curr_items", exact: true }).waitFor();
      await checkAccess(page, `${view}, ${colorScheme}`);
      await shot(page, `empty-${view}-${colorScheme}`);
    }
    await page.close();
  }
  await stop(server);
}

async function fullServer(open) {
  const data = fs.mkdtempSync(path.join(os.tmpdir(), "admin-page-"));
  const server = await start("--data-dir", data);
  const filling = spawn(todana, ["bench", `127.0.0.1:${server.port}`, "--load-only", "--keys", "1000000", "--value-size", "key"]);
  const filled = new Promise((resolve) => filling.once("exit", resolve));
  const page = await open(server.page);
  await page.locator("canvas").first().waitFor();
  // The figure of the last second, so it is awaited while requests arrive.
  const times = page.locator("figure", { hasText: "Time of a request in the server" }).locator(".note");
  await times.filter({ hasText: /^half [\d.]+ (µs|ms), 99 % [\d.]+ (µs|ms)/ }).waitFor();
  await filled;
  await page.locator(".tile", { hasText: "records" }).getByText("1.00 M").waitFor();
  await shot(page, "full-overview");
  await checkAccess(page, "full overview");
  await goTo(page, "hot keys");
  await page.getByRole("cell", { name: /^0\d{7}$/ }).first().waitFor();
  await goTo(page, "databases");
  await page.getByRole("link", { name: "mem:hash" }).click();
  await page.getByText(/^1\d\d found|^[2-9]\d\d found/).waitFor();
  assert.ok((await page.locator("tbody tr").count()) >= 100);
  const before = await page.locator("tbody tr").count();
  await page.getByRole("button", { name: "More" }).click();
  await page.waitForFunction((rows) => document.querySelectorAll("tbody tr").length > rows, before);
  // A key that only a search of all records finds.
  await page.getByLabel(/^Keys/).fill("*0777777");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText("1 found, 1.00 M records read, no more").waitFor();
  await page.getByRole("button", { name: "00777777" }).click();
  await page.getByText("8 bytes, flags 0, expires never").waitFor();
  assert.equal(await page.locator("pre").textContent(), "00777777");
  await shot(page, "full-record");
  await goTo(page, "slow requests");
  await page.getByText(/^Requests that take 10 ms or more/).waitFor();
  await page.close();
  await stop(server);
  fs.rmSync(data, { recursive: true });
}

async function hostileRecords(open) {
  const markup = "<img src=x onerror=alert(1)>";
  const large = Buffer.alloc(1000000, "\u00ff", "latin1");
  const records = [
    [markup, `<script>alert(2)</script>{"a":"${markup}"}`],
    ["line\r\nend\u202e\u0000", '{"name":"<b>x</b>","list":[1,2]}'],
    [Buffer.from([0xff, 0xfe, 0x25, 0x2f, 0x23]), Buffer.from([0, 1, 2, 255])],
    ["large", large],
  ];
  const server = await start("-I", "2m");
  await store(server, records);
  const page = await open(`${server.page}#records/0/*`);
  await page.getByText("4 found").waitFor();
  await shot(page, "hostile-list");
  await page.getByRole("button", { name: markup }).click();
  await page.getByRole("heading", { name: markup }).waitFor();
  assert.equal(await page.locator("pre").textContent(), records[0][1]);
  await page.getByRole("button", { name: "line\\u000d\\u000aend\\u202e\\u0000" }).click();
  await page.getByText("32 bytes").waitFor();
  assert.equal(await page.locator("pre").textContent(), JSON.stringify(JSON.parse(records[1][1]), null, 2));
  await page.getByRole("button", { name: /%\/#/ }).click();
  await page.getByText("4 bytes").waitFor();
  assert.match(await page.locator("pre").textContent(), /^000000 {2}00 01 02 ff /);
  await page.getByRole("button", { name: "large" }).click();
  await page.getByText("1.00 M bytes").waitFor();
  assert.match(await page.locator("pre").textContent(), /^000000 {2}ff ff /);
  await shot(page, "hostile-large");
  assert.equal(await page.locator("main img, main script").count(), 0);
  await page.close();
  await stop(server);
}

async function changes(open) {
  const server = await start("--admin-write");
  await store(server, [["user:1", "old"]]);
  const page = await open(`${server.page}#records/0/user:`);
  await page.getByRole("button", { name: "user:1" }).click();
  await page.getByRole("button", { name: "Change or delete" }).click();
  await page.getByLabel("New value").fill("new \u00e4");
  await page.getByLabel("Expires in seconds").fill("500");
  await checkAccess(page, "changes");
  // Another client changes the record, so the change of this page is refused.
  await store(server, [["user:1", "other"]]);
  await page.getByRole("button", { name: "Store" }).click();
  await page.getByText("the record has changed meanwhile").waitFor();
  await page.getByRole("button", { name: "user:1" }).click();
  await page.getByRole("button", { name: "Change or delete" }).click();
  await page.getByLabel("New value").fill("new \u00e4");
  await page.getByLabel("Expires in seconds").fill("500");
  await page.getByRole("button", { name: "Store" }).click();
  await page.getByText("stored", { exact: true }).waitFor();
  assert.equal(await page.locator("pre").textContent(), "new \u00e4");
  await page.getByText(/expires in \d min/).waitFor();
  await page.getByRole("button", { name: "Change or delete" }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByText("deleted", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Search" }).click();
  await page.reload();
  await page.getByText("0 found").waitFor();
  await page.close();
  await stop(server);
  const closed = await start();
  await store(closed, [["a", "1"]]);
  const reader = await open(`${closed.page}#records/0/a`);
  await reader.getByRole("button", { name: "a", exact: true }).click();
  await reader.getByRole("button", { name: "Change or delete" }).click();
  await reader.getByText("--admin-write").waitFor();
  await reader.close();
  await stop(closed);
}

async function checkpointAndBackup(open) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "admin-page-"));
  const options = ["--data-dir", path.join(folder, "data"), "--admin-backups", path.join(folder, "backups"), "--admin-write"];
  const server = await start(...options);
  const value = "x".repeat(300000);
  await store(server, [["large", value], ["row", "name\0ann\0age\u000033"]]);
  const page = await open(`${server.page}#databases`);
  await page.getByRole("button", { name: "Write a checkpoint" }).click();
  await page.getByText(/a checkpoint of 2 records/).waitFor();
  await page.getByRole("button", { name: "Back up" }).click();
  await page.getByText(/a backup of 2 records/).waitFor();
  assert.equal(fs.readdirSync(path.join(folder, "backups")).length, 1);
  await shot(page, "backup");
  await checkAccess(page, "backup");
  await goTo(page, "slow requests");
  await page.getByRole("cell", { name: "large", exact: true }).first().waitFor();
  await shot(page, "slow-requests");
  await checkAccess(page, "slow requests");
  await page.goto(`${server.page}#records/0/row`);
  await page.getByRole("button", { name: "row" }).click();
  await page.getByLabel("Show as").selectOption("table");
  assert.equal(await page.locator("pre").textContent(), "name: ann\nage: 33");
  await page.close();
  await stop(server);
  fs.rmSync(folder, { recursive: true });
}

async function token(open) {
  const file = path.join(folder, "token");
  fs.writeFileSync(file, "correct horse battery\n");
  const server = await start("--admin-token-file", file);
  const page = await open(server.page);
  await page.getByLabel("Token of --admin-token-file").fill("wrong");
  await page.keyboard.press("Enter");
  await page.getByText("the token is missing or wrong").first().waitFor();
  await page.getByLabel("Token of --admin-token-file").fill("correct horse battery");
  await checkAccess(page, "token");
  await page.keyboard.press("Enter");
  await page.locator(".tile b").first().waitFor();
  await page.reload();
  await page.locator(".tile b").first().waitFor();
  await page.close();
  await stop(server);
}

async function lostServer(open) {
  const server = await start();
  const page = await open(server.page);
  await page.getByText(/^running for/).waitFor();
  await stop(server);
  await page.getByText("the server cannot be reached").waitFor();
  await shot(page, "lost-server");
  await page.close();
}

async function narrowScreen(open) {
  const server = await start();
  const page = await open(server.page, { viewport: { width: 360, height: 700 }, hasTouch: true });
  for (const view of VIEWS) {
    await goTo(page, view);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `${view} is ${wider} pixels wider than the screen`);
  }
  await shot(page, "narrow-figures");
  // The keyboard reaches the views.
  await page.reload();
  await page.getByText(/^running for/).waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Overview");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 2, name: "Databases" }).waitFor();
  await page.close();
  await stop(server);
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
