// Graphile Worker with its local queue and its batched completion, 24 jobs at once.
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { BULK, DSN, logWaited, main, paced, timed } = require("./peer");

const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

async function withUtils(step) {
  const utils = await makeWorkerUtils({ connectionString: DSN, logger });
  await step(utils);
  await utils.release();
}

main({
  setup: () => withUtils((utils) => utils.migrate()),
  one: (count) => withUtils((utils) => timed(count, 1, () => utils.addJob("noop", {}))),
  many: (count) =>
    withUtils((utils) =>
      timed(count, BULK, (size) =>
        utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: {} }))),
      ),
    ),
  send: (count, gap) => withUtils((utils) => paced(count, gap, (sentAt) => utils.addJob("waited", { sentAt }))),
  work: () =>
    run({
      connectionString: DSN,
      concurrency: 24,
      pollInterval: 500,
      maxPoolSize: 14,
      noHandleSignals: true,
      logger,
      taskList: { noop: async () => {}, waited: async ({ sentAt }) => logWaited(sentAt) },
      preset: { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
    }),
});
