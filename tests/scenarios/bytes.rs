//! Large payloads, large outputs, and the memory that they cost.

use queue_worker::private_servers::{PostgresOptions, RedisOptions};

use crate::common::{Scene, TcpProxy, wait_for};

/// In the unit of /proc/PID/status.
const MIB: u64 = 1024;
/// What a worker needs with nothing to do, and some room.
const BASE: u64 = 32;
/// More than run at once.
const TASKS: usize = 16;

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
        ("QUEUE_WORKER_WORKER__PAYLOAD_BUDGET", "64MiB"),
    ];
    // One of the largest size, and a crowd of half of it.
    let payload = vec![b'x'; 64 * 1024 * 1024];
    let length = |n: usize| if n == 0 { payload.len() } else { payload.len() / 2 };
    for n in 0..TASKS {
        scene.task_with(&format!("t-{n}"), "count", &payload[..length(n)], &[]).await;
    }
    let mut worker = scene.worker_with("a", &environment).await;
    for n in 0..TASKS {
        let row = scene.until_status(&format!("t-{n}"), "succeeded").await;
        assert_eq!(row.result, Some(format!("{}\n", length(n)).into_bytes()));
        assert_eq!((row.attempts, row.crashes), (0, 0));
    }
    scene.until_empty().await;
    // The budget, and a few payloads on their way in and out. All at once would be as much without a
    // single copy, and each is copied more than once.
    let bound = (64 + 5 * 64 + BASE) * MIB;
    let most = worker.memory_kib("VmHWM");
    println!("{most} KiB at the most");
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

/// Far beyond any limit, and in the middle of others: they hold up nobody for ever, and their
/// letters stay small.
#[tokio::test]
async fn entries_of_hundreds_of_megabytes_are_buried() {
    let scene = Scene::with(RedisOptions::volatile(), PostgresOptions::volatile()).await;
    let payload = vec![b'x'; 200 * 1024 * 1024];
    for n in 0..2 {
        scene.task(&format!("before-{n}"), "effect", "").await;
        scene.task_with(&format!("huge-{n}"), "effect", &payload, &[]).await;
    }
    scene.task("after", "effect", "").await;
    let mut worker = scene.worker("a").await;
    wait_for("the dead letters", async || scene.letters_without_bytes().await == 2).await;
    for id in ["before-0", "before-1", "after"] {
        scene.until_status(id, "succeeded").await;
    }
    scene.until_empty().await;
    for letter in scene.letters().await {
        assert_eq!((letter.reason.as_str(), letter.status.as_deref()), ("oversized", Some("cut")));
        assert!(
            letter.message.contains("of the 209715200 bytes of \"payload\""),
            "{}",
            letter.message
        );
        assert!(letter.message.contains("have the SHA-256 "), "{}", letter.message);
        let fields = letter.fields.expect("what was kept");
        assert_eq!(fields.iter().map(Vec::len).sum::<usize>(), 8 * 1024 * 1024);
        assert!(letter.task_id.is_some_and(|id| id.starts_with("huge-")));
        let id = letter.id.to_string();
        let requeue = scene.command(["dead", "requeue", &id]).output().await.expect("run requeue");
        let told = String::from_utf8_lossy(&requeue.stdout);
        assert!(!requeue.status.success() && told.contains("only a part of an entry"), "{told}");
    }
    worker.terminate().await;
}

/// At 6 MB a second the payload takes longer than a call may.
#[tokio::test]
async fn a_large_payload_arrives_over_a_slow_network() {
    let scene = Scene::start().await;
    let proxy = TcpProxy::start(scene.redis.port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    scene.write_config_for(&url, &scene.database, "");
    let environment = [("QUEUE_WORKER_QUEUE__Q__MAX_PAYLOAD", "8MiB")];
    let mut worker = scene.worker_with("a", &environment).await;
    scene.task("warm", "effect", "").await;
    scene.until_status("warm", "succeeded").await;
    proxy.throttle(6_000_000);
    scene.task_with("t", "effect", &vec![b'x'; 8 * 1024 * 1024], &[]).await;
    let row = scene.until_status("t", "succeeded").await;
    assert_eq!((row.attempts, row.crashes), (0, 0));
    scene.until_empty().await;
    worker.terminate().await;
}
