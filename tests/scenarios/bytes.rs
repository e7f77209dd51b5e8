//! Large payloads, large outputs, and the memory that they cost.

use queue_worker::private_servers::{PostgresOptions, RedisOptions};

use crate::common::{Scene, wait_for};

/// In the unit of /proc/PID/status.
const MIB: u64 = 1024;
/// What a worker needs with nothing to do, and some room.
const BASE: u64 = 32;
/// More than run at once.
const TASKS: usize = 12;

#[tokio::test]
async fn scenario_13_giant_output_neither_blocks_nor_fills_the_memory() {
    let scene = Scene::start().await;
    scene.write_config(
        "\n[handler.loud]\ntype = \"exec\"\nmax_attempts = 1\nstderr_cap = \"1KiB\"\n\
         command = [\"/bin/sh\", \"-c\", '\
         head -c 100000000 /dev/zero | tr \"\\000\" x >&2; printf \"the end\" >&2; exit 1']\n",
    );
    let mut worker = scene.worker("a").await;
    let before = worker.memory_kib("VmHWM");
    scene.task("t", "loud", "").await;
    scene.until_status("t", "failed").await;
    let tail = scene.letters().await[0].tail.clone().expect("the end of it");
    assert!(tail.len() <= 1024, "{} bytes", tail.len());
    assert!(tail.ends_with(b"xxxthe end"));
    let grown = worker.memory_kib("VmHWM") - before;
    assert!(grown < 32 * MIB, "grown by {grown} KiB");
    assert!(worker.log().len() < 1024 * 1024, "the log is bounded too");
    worker.terminate().await;
}

#[tokio::test]
async fn scenario_13_giant_payloads_pass_in_bounded_memory() {
    let scene = Scene::with(RedisOptions::volatile(), PostgresOptions::volatile()).await;
    scene.write_config("\n[handler.count]\ntype = \"exec\"\ncommand = [\"/usr/bin/wc\", \"-c\"]\n");
    let environment = [
        ("QUEUE_WORKER_QUEUE__Q__MAX_PAYLOAD", "64MiB"),
        ("QUEUE_WORKER_WORKER__PAYLOAD_BUDGET", "128MiB"),
    ];
    let payload = vec![b'x'; 64 * 1024 * 1024];
    for n in 0..TASKS {
        scene.task_with(&format!("t-{n}"), "count", &payload, &[]).await;
    }
    let mut worker = scene.worker_with("a", &environment).await;
    for n in 0..TASKS {
        let row = scene.until_status(&format!("t-{n}"), "succeeded").await;
        assert_eq!(row.result, Some(b"67108864\n".to_vec()));
        assert_eq!((row.attempts, row.crashes), (0, 0));
    }
    scene.until_empty().await;
    // The budget, and a few payloads on their way in and out; eight at once would be far above it.
    let bound = (128 + 5 * 64 + BASE) * MIB;
    let most = worker.memory_kib("VmHWM");
    assert!(most < bound, "{most} KiB at the most, more than {bound}");
    worker.terminate().await;
}

#[tokio::test]
async fn a_payload_over_the_limit_is_a_dead_letter() {
    let scene = Scene::start().await;
    let mut worker = scene.worker("a").await;
    let payload = vec![b'x'; 256 * 1024 + 1];
    scene.task_with("big", "effect", &payload, &[]).await;
    scene.task_with("fits", "effect", &payload[1..], &[]).await;
    scene.until_status("fits", "succeeded").await;
    wait_for("the dead letter", async || scene.letters().await.len() == 1).await;
    assert_eq!(scene.letters().await[0].reason, "oversized");
    assert_eq!(scene.row("big").await, None);
    scene.until_empty().await;
    worker.terminate().await;
}
