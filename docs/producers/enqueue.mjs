// Adds one task with node-redis: REDIS_URL=redis://HOST:PORT node enqueue.mjs USER
import { createClient } from "redis";

const user = process.argv[2];
const broker = createClient({ url: process.env.REDIS_URL });
await broker.connect();
const entry = await broker.xAdd("qw:{mail}:tasks", "*", {
  task_id: `welcome-${user}`, // the same id again is the same task
  kind: "welcome",
  payload: JSON.stringify({ user }),
  not_before_ms: String(Date.now() + 1000), // in a second
});
console.log(entry);
await broker.close();
