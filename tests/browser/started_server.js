// Starts servers with an admin page, and has the options of Chromium.
"use strict";

const { spawn } = require("node:child_process");
const readline = require("node:readline");

/** The options of Chromium. With them, it connects to nothing but the pages. */
exports.CHROMIUM = {
  executablePath: "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
};

/** Starts a server. Returns its process, the address for clients, and that of the page. */
exports.start = async (todana, ...options) => {
  const child = spawn(todana, ["serve", "-p", "-1", "--admin-port", "-1", ...options], { stdio: ["ignore", "pipe", "inherit"] });
  let page = null;
  for await (const line of readline.createInterface({ input: child.stdout })) {
    page ??= line.match(/admin page: (http:\S+)/)?.[1];
    const address = line.match(/^listening on ([^ ,]+)/)?.[1];
    if (address) return { child, page, port: Number(address.split(":").pop()) };
  }
  throw new Error("the server has not started");
};
