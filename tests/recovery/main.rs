//! How soon the task of a killed worker is in other hands: within TTL + 1 s, and with one failed call
//! on the way hardly later, whichever call it is. An entry that was taken over and not run would idle
//! for a second lease; every way to that is tried here, with the production's worker over stores in
//! memory, in paused time.

mod stores;
mod suspects;
mod world;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use stores::{Mishap, Plan, TIMEOUT};
use tokio::time::{Instant, timeout};
use world::{HEARTBEAT, LEASE, Shape, World};

/// The promise.
const BOUND: Duration = Duration::from_secs(LEASE.as_secs() + 1);
/// Nobody waits for longer.
const LIMIT: Duration = Duration::from_secs(30);
/// More calls than any recovery takes.
const CALLS: usize = 12;
/// Different jitter.
const SEEDS: Range<u64> = 0..3;
/// When entry, lock and lease were renewed last, in milliseconds. A heartbeat renews
/// the lease beside the others; a claim comes after its entry and its lock.
const LAST_BEATS: [[u64; 3]; 5] =
    [[500, 500, 500], [500, 515, 490], [500, 700, 650], [100, 300, 600], [100, 150, 900]];

/// The calls of an undisturbed takeover, of some shape and timing.
const ON_THE_WAY: [&str; 5] = ["reclaim", "acquire", "claim", "release", "postpone"];
/// Those that only a mishap brings about, too.
const ALL: [&str; 6] = ["reclaim", "acquire", "claim", "release", "postpone", "hand_over"];

/// A case of a killed worker.
#[derive(Debug, Clone)]
struct Case {
    shape: Shape,
    last_beat: [u64; 3],
    /// How many live workers there are.
    workers: u64,
    /// What goes wrong in the first of them.
    plan: Plan,
    seed: u64,
}

/// The calls of the first live worker, by name, in their order.
type Log = Vec<&'static str>;

/// The time from the last kill of a worker that had the task until a handler runs it, the calls of
/// the first live worker on the way, and how many of the live ones were killed.
async fn recover(case: &Case) -> (Duration, Log, usize) {
    let (world, mut runs) = World::new();
    let holder = world.holder(case.shape).await;
    let plan = |n| if n == 0 { case.plan.clone() } else { Plan::default() };
    let mut live: Vec<_> =
        (0..case.workers).map(|n| world.worker(2 + n, plan(n), case.seed)).collect();
    holder.beats_and_dies(&world, case.last_beat).await;
    let (mut killed, mut deaths) = (Instant::now(), 0);
    let calls = Arc::clone(&live[0].calls);
    loop {
        tokio::select! {
            biased;
            ran = timeout(LIMIT, runs.recv()) => {
                let ran = ran.map_or(killed + LIMIT, |ran| ran.expect("a handler"));
                return (ran - killed, calls.log.lock().unwrap().clone(), deaths);
            }
            () = calls.dies.notified() => {
                killed = Instant::now();
                deaths += 1;
                live.remove(0);
            }
        }
    }
}

fn in_paused_time<T>(play: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(play)
}

/// What cases met on their way.
#[derive(Debug, Default)]
struct Met {
    /// The calls that went wrong.
    calls: BTreeSet<&'static str>,
    /// Live workers that were killed.
    deaths: usize,
}

impl Met {
    /// Without these a test that passes has shown little.
    fn assert_calls(&self, names: &[&str]) {
        for name in names {
            assert!(self.calls.contains(name), "no mishap in {name}: {self:?}");
        }
    }
}

/// Plays all cases of so many workers with these plans; none may take longer than `bound`.
fn judge(workers: u64, plans: &[Plan], seeds: Range<u64>, bound: Duration) -> Met {
    let (mut late, mut most, mut met) = (Vec::new(), Duration::ZERO, Met::default());
    for (last_beat, seed) in LAST_BEATS.into_iter().flat_map(|b| seeds.clone().map(move |s| (b, s)))
    {
        for plan in plans {
            for shape in [Shape::Plain, Shape::Keyed, Shape::Twice] {
                let case = Case { shape, last_beat, workers, plan: plan.clone(), seed };
                let (took, calls, deaths) = in_paused_time(recover(&case));
                met.deaths += deaths;
                most = most.max(took);
                met.calls.extend(plan.0.keys().filter_map(|call| calls.get(*call).copied()));
                if took > bound {
                    late.push(format!("{took:?}: {case:?}: {calls:?}"));
                }
            }
        }
    }
    println!("{workers} workers: at most {most:?}, with mishaps in {met:?}");
    late.truncate(5);
    assert!(late.is_empty(), "over {bound:?}, at most {most:?}, such as\n{}", late.join("\n"));
    met
}

/// One mishap, in any call.
fn once(mishap: Mishap) -> Vec<Plan> {
    (0..CALLS).map(|call| Plan::from([(call, mishap)])).collect()
}

#[test]
fn a_killed_worker_costs_a_lease_and_a_sweep() {
    judge(1, &[Plan::default()], 0..50, BOUND);
    judge(2, &[Plan::default()], 0..50, BOUND);
}

/// No call fails here: the machine is only slow.
#[test]
fn an_answer_that_is_late_costs_only_its_time() {
    judge(1, &once(Mishap::Late), SEEDS, BOUND).assert_calls(&ON_THE_WAY);
    judge(2, &once(Mishap::Late), SEEDS, BOUND).assert_calls(&ON_THE_WAY);
}

#[test]
fn a_call_that_fails_costs_no_second_lease() {
    for mishap in [Mishap::Refused, Mishap::Cut] {
        judge(1, &once(mishap), SEEDS, BOUND).assert_calls(&ON_THE_WAY);
        judge(2, &once(mishap), SEEDS, BOUND).assert_calls(&ON_THE_WAY);
    }
}

#[test]
fn an_answer_that_never_comes_costs_its_time_out() {
    judge(1, &once(Mishap::Lost), SEEDS, BOUND + TIMEOUT).assert_calls(&ON_THE_WAY);
    judge(2, &once(Mishap::Lost), SEEDS, BOUND + TIMEOUT).assert_calls(&ON_THE_WAY);
}

#[test]
fn two_mishaps_cost_no_second_lease_either() {
    let mut plans = Vec::new();
    for first in [Mishap::Refused, Mishap::Late, Mishap::Lost] {
        for second in [Mishap::Refused, Mishap::Late] {
            for call in 0..6 {
                plans.extend((1..4).map(|on| Plan::from([(call, first), (call + on, second)])));
            }
        }
    }
    judge(1, &plans, 0..2, BOUND + 2 * TIMEOUT).assert_calls(&ALL);
    judge(2, &plans, 0..2, BOUND + 2 * TIMEOUT).assert_calls(&ALL);
}

/// The time counts from the last kill of a worker that had the entry.
#[test]
fn a_second_kill_in_any_call_of_the_takeover_costs_one_lease_more() {
    let met = judge(2, &once(Mishap::Kill), SEEDS, BOUND);
    met.assert_calls(&ON_THE_WAY);
    assert!(met.deaths > 0, "nobody was killed");
}

/// What a hand-over has added again may be there, although no answer came: once more would add two.
#[test]
fn what_may_have_been_added_again_is_not_added_twice() {
    for shape in [Shape::Plain, Shape::Keyed] {
        let plan = Plan::from([(1, Mishap::Refused), (2, Mishap::Gone)]);
        let calls = in_paused_time(async {
            let (world, mut runs) = World::new();
            let holder = world.holder(shape).await;
            let live = world.worker(2, plan, 0);
            holder.beats_and_dies(&world, LAST_BEATS[0]).await;
            timeout(LIMIT, runs.recv()).await.expect("it runs");
            // Long enough for all that could come after the lost answer.
            world.until(20_000).await;
            live.calls.log.lock().unwrap().clone()
        });
        assert_eq!(calls[..3], ["reclaim", "acquire", "hand_over"], "{calls:?}");
        let times = calls.iter().filter(|call| **call == "hand_over").count();
        assert_eq!(times, 1, "{calls:?}");
    }
}

/// A lock that is always about to end and never does is not a dead worker's: the task waits in
/// Postgres, ever longer, and does not come round through the pending list, however rarely that is
/// looked at.
#[test]
fn a_foreign_lock_that_is_short_and_renewed_puts_off_a_task_but_once() {
    for (sweep, least) in [(LEASE / 10, 10), (LEASE, 5)] {
        let calls = in_paused_time(async {
            let (mut world, mut runs) = World::new();
            world.sweep = sweep;
            let task = world.orphan(Shape::Keyed).await;
            let live = world.worker(2, Plan::default(), 0);
            tokio::select! {
                () = world.hold_lock(&task, Duration::from_secs(1)) => {}
                _ = runs.recv() => panic!("it ran beside the holder"),
                () = world.until(60_000) => {}
            }
            // The holder is gone.
            timeout(LIMIT, runs.recv()).await.expect("it runs at last");
            live.calls.log.lock().unwrap().clone()
        });
        let count = |name| calls.iter().filter(|call| **call == name).count();
        assert_eq!(count("postpone"), 1, "{sweep:?}: {calls:?}");
        assert!((least..60).contains(&count("acquire")), "{sweep:?}: {calls:?}");
    }
}

/// It finds the lock taken, of its resource too, and what holds that is the task itself.
#[test]
fn another_entry_of_a_running_task_comes_round_once_a_lease() {
    const LEASES: u32 = 6;
    for shape in [Shape::Plain, Shape::Keyed] {
        let (calls, ran) = in_paused_time(async {
            let (world, mut runs) = World::new();
            let holder = world.holder(shape).await;
            world.enqueue(shape);
            let live = world.worker(2, Plan::default(), 0);
            holder.beats_for(&world, LEASES * LEASE).await;
            let calls = live.calls.log.lock().unwrap().clone();
            (calls, runs.try_recv().is_ok())
        });
        let times = calls.iter().filter(|call| **call == "acquire").count();
        let leases = usize::try_from(LEASES).unwrap();
        assert!(!ran && (leases - 2..=leases).contains(&times), "{shape:?}: {times}: {calls:?}");
    }
}

/// It does not run what it was delivered unseen, and has to look for it all the same: under its name
/// the entry would idle for another lease.
#[test]
fn a_worker_that_has_become_full_hands_over_what_came_unseen() {
    for (shape, seed) in
        [Shape::Plain, Shape::Keyed].into_iter().flat_map(|s| SEEDS.map(move |n| (s, n)))
    {
        let (took, calls) = in_paused_time(async {
            let (world, mut runs) = World::new();
            let holder = world.holder(shape).await;
            let full = world.worker(2, Plan::from([(0, Mishap::Lost)]), seed);
            holder.beats_and_dies(&world, LAST_BEATS[0]).await;
            let killed = Instant::now();
            while full.calls.log.lock().unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let _others = full.fill(&world);
            let _other = world.worker(3, Plan::default(), seed);
            timeout(LIMIT, runs.recv()).await.expect("it runs");
            (killed.elapsed(), full.calls.log.lock().unwrap().clone())
        });
        assert!(calls.contains(&"hand_over"), "{calls:?}");
        // The pause after the error is as long as a sweep.
        assert!(took <= BOUND + TIMEOUT + LEASE / 10, "{shape:?}: {took:?}");
    }
}

/// A claim that was committed unheard is asked for again at once; but not by a worker that leaves: the
/// lease is another's to wait for, and the entry to be given back while there is time.
#[test]
fn a_claim_is_not_asked_for_again_while_the_worker_leaves() {
    let calls = |leaves: bool| {
        in_paused_time(async move {
            let (world, _runs) = World::new();
            let holder = world.holder(Shape::Plain).await;
            let live = world.worker(2, Plan::from([(2, Mishap::Lost)]), 0);
            holder.beats_and_dies(&world, LAST_BEATS[0]).await;
            while !live.calls.log.lock().unwrap().contains(&"claim") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if leaves {
                live.stop.leaving.cancel();
            }
            tokio::time::sleep(2 * TIMEOUT).await;
            let mut calls = live.calls.log.lock().unwrap().clone();
            calls.retain(|call| *call != "reclaim");
            calls
        })
    };
    assert_eq!(calls(false)[..3], ["acquire", "claim", "claim"]);
    assert_eq!(calls(true), ["acquire", "claim", "release", "hand_over"]);
}

/// Neither the ledger nor the effect answers before the time limit: a minute.
#[test]
fn an_effect_is_not_waited_for_when_its_lease_is_lost() {
    in_paused_time(async {
        let (world, mut runs) = World::new();
        let task = world.orphan(Shape::Endless).await;
        let live = world.worker(2, Plan::default(), 0);
        timeout(LIMIT, runs.recv()).await.expect("it begins");
        world.give_to_another(&task);
        tokio::time::sleep(2 * HEARTBEAT).await;
        let calls = live.calls.log.lock().unwrap().clone();
        assert!(calls.contains(&"postpone"), "{calls:?}");
    });
}
