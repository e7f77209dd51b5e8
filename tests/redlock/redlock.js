// A Redlock client of the npm packages `redlock` and `ioredis`, told by lines on standard input:
//
//   lock KEY TTL                 answers `granted TOKEN` or `failed`
//   unlock KEY                   answers `released` or `failed`
//   contend KEY TTL GUARD ROUNDS takes the lock ROUNDS times; inside, it alone may hold the key
//                                `guard` on the server at port GUARD; answers `overlaps N`
//
// Arguments: the ports of the nodes.
const Redis = require('ioredis');
const Redlock = require('redlock');

const connect = (port) => new Redis({ port: Number(port), host: '127.0.0.1' });
const nodes = process.argv.slice(2).map(connect);
const redlock = new Redlock(nodes, { driftFactor: 0.01, retryCount: 0 });
redlock.on('clientError', () => {});
const held = new Map();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function lock(key, ttl) {
  try {
    held.set(key, await redlock.lock(key, Number(ttl)));
    return `granted ${held.get(key).value}`;
  } catch (error) {
    return 'failed';
  }
}

async function unlock(key) {
  try {
    await held.get(key).unlock();
    return 'released';
  } catch (error) {
    return 'failed';
  }
}

async function contend(key, ttl, guardPort, rounds) {
  const guard = connect(guardPort);
  let overlaps = 0;
  for (let round = 0; round < Number(rounds); ) {
    if (!(await lock(key, ttl)).startsWith('granted')) {
      await pause(Math.random() * 20);
      continue;
    }
    if ((await guard.set('guard', 'node', 'PX', 60000, 'NX')) !== 'OK') overlaps += 1;
    await pause(Math.random() * 3);
    await guard.del('guard');
    await unlock(key);
    round += 1;
    await pause(Math.random() * 10);
  }
  guard.disconnect();
  return `overlaps ${overlaps}`;
}

const commands = { lock, unlock, contend };
const lines = require('readline').createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const [command, ...rest] = line.trim().split(' ');
  console.log(await commands[command](...rest));
});
lines.on('close', () => process.exit(0));
