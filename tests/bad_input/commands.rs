//! Commands whose server is away say so in one sentence, soon, and end with 1.

use std::process::Output;
use std::time::Duration;

use tokio::time::Instant;

use crate::common::Scene;

/// "Within a few seconds", on a busy machine.
const SOON: Duration = Duration::from_secs(8);

const ENQUEUE: [&str; 5] = ["enqueue", "q", "--kind=effect", "--payload=p", "--id=t"];

async fn fails(scene: &Scene, arguments: &[&str]) -> String {
    let started = Instant::now();
    let running = scene.command(arguments.iter().copied()).output();
    let output: Output = tokio::time::timeout(Duration::from_secs(60), running)
        .await
        .unwrap_or_else(|_| panic!("{arguments:?} does not end"))
        .expect("run queue-worker");
    let told = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(started.elapsed() < SOON, "{arguments:?} took {:?}: {told}", started.elapsed());
    assert_eq!(told.lines().count(), 1, "{arguments:?}: {told}");
    told
}

#[tokio::test]
async fn enqueue_without_redis() {
    let mut scene = Scene::start().await;
    let address = format!("redis 127.0.0.1:{}", scene.redis.port());
    scene.redis.pause();
    let told = fails(&scene, &ENQUEUE).await;
    assert!(told.contains(&address), "{told}");
    scene.redis.resume();
    scene.redis.stop().await;
    let told = fails(&scene, &ENQUEUE).await;
    assert!(told.contains(&address) && told.contains("Connection refused"), "{told}");
    assert!(told.contains("check that it runs and that `redis.url` is right"), "{told}");
    scene.redis.restart().await.expect("start redis");
    let output = scene.command(ENQUEUE).output().await.expect("run queue-worker");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "t\n");
    assert_eq!(scene.length().await, 1);
}

#[tokio::test]
async fn migrate_without_postgres() {
    let mut scene = Scene::start().await;
    let address = format!("postgres 127.0.0.1:{}/test", scene.postgres.port());
    scene.postgres.pause();
    let told = fails(&scene, &["migrate"]).await;
    assert!(told.contains(&address), "{told}");
    scene.postgres.resume();
    scene.postgres.stop().await;
    let told = fails(&scene, &["migrate"]).await;
    assert!(told.contains(&address) && told.contains("Connection refused"), "{told}");
    assert!(told.contains("check that it runs and that `postgres.url` is right"), "{told}");
}

/// What is no mistake of the configuration never ends with its code.
#[tokio::test]
async fn wrong_usage_and_bad_tasks_are_not_the_configurations_fault() {
    let scene = Scene::start().await;
    for (arguments, code, named) in [
        (vec!["runn"], 2, "unrecognized subcommand"),
        (vec!["enqueue", "q"], 2, "--kind"),
        (vec!["enqueue", "not a queue", "--kind=k"], 2, "queue name"),
        (vec!["enqueue", "q", "--kind=k", "--payload-file=/nowhere"], 1, "/nowhere"),
        (vec!["enqueue", "q", "--file=/nowhere"], 1, "/nowhere"),
    ] {
        let output = scene.command(arguments.clone()).output().await.expect("run queue-worker");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(named), "{arguments:?}: {told}");
    }
    assert_eq!(scene.length().await, 0);
}
