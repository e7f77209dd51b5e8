//! A suspect whose worker is busy with what takes hours.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::in_paused_time;
use super::stores::Plan;
use super::world::{Live, Shape, World};

const SUSPECT_WAIT: Duration = Duration::from_secs(30);
const HOURS: Duration = Duration::from_secs(6 * 3600);

/// A task that has crashed two workers, and a busy one that will take it over.
async fn suspect(world: &World) -> Live {
    drop(world.holder(Shape::Plain).await);
    world.has_crashed(2);
    world.worker(2, Plan::default(), 0)
}

#[test]
fn a_suspect_goes_to_a_worker_that_is_idle() {
    in_paused_time(async {
        let (mut world, mut runs) = World::new();
        world.suspect_wait = SUSPECT_WAIT;
        let busy = suspect(&world).await;
        let _long = busy.occupy(&world, 1);
        // The busy one has taken it over.
        world.until(10_000).await;
        assert!(runs.try_recv().is_err(), "it is not alone");
        let _others = busy.fill(&world);
        let _idle = world.worker(3, Plan::default(), 1);
        let start = Instant::now();
        timeout(HOURS, runs.recv()).await.expect("it runs");
        // Its patience, as long again in which the busy one is quiet, and a wait in the ledger.
        assert!(start.elapsed() < 3 * SUSPECT_WAIT, "{:?}", start.elapsed());
    });
}

#[test]
fn a_worker_is_quiet_for_a_suspect_now_and_then_until_it_has_its_turn() {
    in_paused_time(async {
        let (mut world, mut runs) = World::new();
        world.suspect_wait = SUSPECT_WAIT;
        let only = suspect(&world).await;
        let long = only.occupy(&world, 1);
        world.until(40_000).await;
        world.enqueue_other();
        let start = Instant::now();
        timeout(HOURS, runs.recv()).await.expect("the other one runs");
        assert!(start.elapsed() < SUSPECT_WAIT, "{:?}", start.elapsed());
        assert_ne!(start.elapsed(), Duration::ZERO, "it was not quiet");
        world.until(600_000).await;
        assert!(runs.try_recv().is_err(), "the suspect is not alone");
        drop(long);
        timeout(2 * SUSPECT_WAIT, runs.recv()).await.expect("it runs");
    });
}
