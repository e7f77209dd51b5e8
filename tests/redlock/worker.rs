//! The real worker, with its locks on three nodes.

use std::fmt::Write;

use super::common::Scene;
use super::redis_server::RedisServer;

/// Short times, so that nodes vote soon.
const TIMES: &str = "\n[lease]\nttl = \"1500ms\"\nheartbeat = \"300ms\"\nmin_idle = \"1500ms\"\n";

fn with_nodes(scene: &Scene, nodes: &[RedisServer]) {
    let urls: Vec<String> = nodes.iter().map(|node| format!("{:?}", node.url())).collect();
    let mut more = TIMES.to_owned();
    let _ = writeln!(more, "nodes = [{}]", urls.join(", "));
    scene.write_config(&more);
}

#[tokio::test]
async fn a_worker_outlives_its_lock_nodes_while_postgres_renews() {
    let scene = Scene::start().await;
    let mut nodes: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start());
    with_nodes(&scene, &nodes);
    let mut worker = scene.worker("a").await;
    scene.task("long", "gate", "").await;
    scene.until_journal("long", "start").await;
    assert_eq!(nodes[0].run::<u64>("EXISTS lock:task:long"), 1);
    assert_eq!(scene.locks().await, Vec::<String>::new(), "the streams' redis holds none");
    nodes.iter_mut().for_each(RedisServer::kill);
    scene.task("next", "sleep", "0").await;
    worker.until_logged("3 of 3 lock nodes away").await;
    assert!(worker.log().contains(&format!("127.0.0.1:{}", nodes[1].port)), "{}", worker.log());
    for _ in 0..2 {
        scene.until_it_outlives_its_lease("long").await;
    }
    scene.open_gate();
    let row = scene.until_status("long", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (1, 0), "it was never interrupted");
    assert_eq!(scene.journal_count("next", "start"), 0, "nothing starts without locks");
    for node in &mut nodes {
        assert!(node.launch(), "the node starts again");
    }
    let row = scene.until_status("next", "succeeded").await;
    assert_eq!((row.fence, row.crashes), (1, 0));
    worker.terminate().await;
    for node in &nodes {
        assert_eq!(node.run::<Vec<String>>("KEYS *"), Vec::<String>::new(), "no lock stays behind");
    }
}
