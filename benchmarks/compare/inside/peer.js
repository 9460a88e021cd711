// What the scripts for Node share: where the database and the log are, time, and the actions' dispatch.
const fs = require("fs");

const BULK = 1000;
const log = fs.openSync(process.env.BENCH_LOG, "a", 0o600);

// Seconds of the same clock as Python's time.monotonic(), so that they compare between processes.
const stopwatch = () => Number(process.hrtime.bigint()) / 1e9;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const logWaited = (sentAt) => fs.writeSync(log, `waited ${(stopwatch() - sentAt).toFixed(6)}\n`);

// Makes runs in steps of `size`, and answers how long that took.
async function timed(count, size, step) {
  const started = stopwatch();
  for (let made = 0; made < count; made += size) await step(Math.min(size, count - made));
  console.log(JSON.stringify({ runs: count, seconds: stopwatch() - started }));
}

// Makes one run every `gap` seconds.
async function paced(count, gap, step) {
  for (let sent = 0; sent < count; sent++) {
    await step(stopwatch());
    await pause(gap);
  }
}

function main(actions) {
  const [action, ...values] = process.argv.slice(2);
  actions[action](...values.map(Number)).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { DSN: process.env.BENCH_DSN, BULK, logWaited, timed, paced, main };
