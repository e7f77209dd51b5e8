//! What a single task costs in this process, store by store left out: decode, hash, bookkeeping, and
//! a round through a coalescer. `queue-worker bench` measures the whole, with real servers.

use bytes::Bytes;
use divan::Bencher;
use queue_worker::clock::{BootInstant, Clock};
use queue_worker::coalesce::Coalescer;
use queue_worker::domain::{Delivery, EntryId, Kind, Origin, PayloadHash, QueueName};
use queue_worker::protocol::dispatch::Dispatch;
use queue_worker::queue::codec::{self, NewTask};
use queue_worker::worker::shared::Shared;
use queue_worker::worker::slots::Slots;

fn main() {
    divan::main();
}

fn delivery(payload: usize) -> Delivery {
    let task = NewTask::new(Kind::new("kind").expect("a kind"), vec![b'x'; payload]);
    Delivery {
        queue: QueueName::new("queue").expect("a name"),
        entry: EntryId { ms: 1, seq: 1 },
        origin: Origin::Fresh,
        raw: task.encode(),
    }
}

#[divan::bench(args = [64, 4_096, 262_144])]
fn decode(bencher: Bencher<'_, '_>, payload: usize) {
    let delivery = delivery(payload);
    bencher.bench(|| codec::decode(&delivery, usize::MAX));
}

#[divan::bench(args = [64, 4_096, 262_144])]
fn hash(bencher: Bencher<'_, '_>, payload: usize) {
    let kind = Kind::new("kind").expect("a kind");
    let payload = Bytes::from(vec![b'x'; payload]);
    bencher.bench(|| PayloadHash::of(&kind, &payload, None));
}

#[divan::bench]
fn dispatch(bencher: Bencher<'_, '_>) {
    let now = BootInstant::from_boot(std::time::Duration::from_secs(1));
    let mut dispatch = Dispatch::new(64, now);
    bencher.bench_local(|| {
        dispatch.fetched();
        dispatch.started();
        dispatch.ended(now);
        dispatch.left(true);
        dispatch.demand(2_000, now)
    });
}

#[divan::bench]
fn take_and_leave_a_place(bencher: Bencher<'_, '_>) {
    let slots = Slots::new(&Shared::new(2_000, 1 << 26), 64, Clock::System);
    let delivery = delivery(64);
    bencher.bench_local(|| slots.take(&delivery));
}

/// A group of callers, each of whom gets its own answer from one round.
#[divan::bench(args = [1, 256])]
fn coalesce(bencher: Bencher<'_, '_>, callers: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let coalescer = runtime.block_on(async {
        Coalescer::<usize, usize>::start(1, 256, |group| async {
            for pending in group {
                let answer = pending.request;
                pending.answer(answer);
            }
        })
    });
    bencher.bench_local(|| {
        runtime.block_on(futures_util::future::join_all(
            (0..callers).map(|caller| coalescer.call(caller)),
        ))
    });
}
