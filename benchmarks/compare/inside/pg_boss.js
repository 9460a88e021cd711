// pg-boss with four pollers of 500 jobs each, every half second.
const PgBoss = require("pg-boss");
const { BULK, DSN, logWaited, main, paced, timed } = require("./peer");

const POLLERS = 4;
const POLL = { batchSize: 500, pollingIntervalSeconds: 0.5 };

async function started(supervise) {
  const boss = new PgBoss({ connectionString: DSN, supervise, schedule: false, max: 10 });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function withBoss(step) {
  const boss = await started(false);
  await step(boss);
  await boss.stop({ graceful: true });
  process.exit(0);
}

main({
  setup: () =>
    withBoss(async (boss) => {
      for (const name of ["noop", "waited"]) await boss.createQueue(name, { name, policy: "standard" });
    }),
  one: (count) => withBoss((boss) => timed(count, 1, () => boss.send("noop", {}))),
  many: (count) =>
    withBoss((boss) =>
      timed(count, BULK, (size) => boss.insert(Array.from({ length: size }, () => ({ name: "noop", data: {} })))),
    ),
  send: (count, gap) => withBoss((boss) => paced(count, gap, (sentAt) => boss.send("waited", { sentAt }))),
  work: async () => {
    const boss = await started(true);
    for (let poller = 0; poller < POLLERS; poller++) await boss.work("noop", POLL, async () => {});
    await boss.work("waited", POLL, async (jobs) => jobs.forEach((job) => logWaited(job.data.sentAt)));
  },
});
