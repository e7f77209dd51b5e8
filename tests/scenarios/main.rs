//! What broke for others, and what must never break here: the real program, real servers, faults
//! on real things. A number in a test's name is the number of a public report:
//!
//! | number | report | what broke |
//! | --- | --- | --- |
//! | 01 | taskforcesh/bullmq#4656 | a stop hangs when the broker is away |
//! | 02 | temporalio/sdk-java#2903, hatchet-dev/hatchet#4383 | heartbeats stop during a drain |
//! | 03 | riverqueue/river#1290 | a task cut by a shutdown loses its attempt |
//! | 04 | rq/rq#2079 | an entry that is popped during a stop is lost |
//! | 05 | laravel/lumen-framework#446 | children outlive the runner |
//! | 06 | celery/celery#8030 | reconnected, but deaf |
//! | 07 | ag2ai/faststream#2611 | a deleted group is never made again |
//! | 08 | redis-rs/redis-rs#1415 | a broken pipe after a rest |
//! | 09 | comet-ml/opik#8137 | the end of a long pending list is never reached: `tests/queue.rs` |
//! | 10 | aegra/aegra#547, riverqueue/river#1302 | a zombie overwrites its successor |
//! | 11 | rails/solid_queue#589 | done, and done again after a lost acknowledgement |
//! | 12 | sidekiq/sidekiq#3296, sidekiq/sidekiq#3414 | bad payloads vanish or jam the queue |
//! | 13 | google/turbinia#945, sidekiq/sidekiq#3570 | giant output and giant payloads |
//! | 14 | taskforcesh/bullmq#892, sidekiq/sidekiq#4594 | poison: `tests/poison.rs` |
//! | 15 | celery/kombu#337 | a delay beyond the timeout runs many times |
//! | 16 | chrisguidry/docket#437 | an unknown kind is dropped in a rolling deploy |
//! | 17 | rails/solid_queue#745 | a typo starts a worker that does nothing |
//! | 18 | hibiken/asynq#1015 | restarts count as crashes |
//! | 19 | celery/celery#5935, DIRACGrid/diracx#909 | a long task is delivered again |
//! | 20 | mike-marcacci/node-redlock#296 | a lock granted with nothing left of it: `tests/redlock.rs` |
//! | 21 | go-redsync/redsync#140 | one paused lock node slows everybody: `tests/redlock.rs` |
//! | 22 | transact-rs/sqlx#4349 | a silent Postgres leaks the pool |

#[path = "../web/client.rs"]
mod client;
#[path = "../common/mod.rs"]
mod common;

mod bytes;
mod configuration;
mod delays;
mod deliveries;
mod drains;
mod failures;
mod full;
mod leftovers;
mod locks;
mod outages;
mod signals;
mod storms;
mod takeovers;
