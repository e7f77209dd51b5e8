//! `doctor`: each mistake made real, on servers and a bus that the test starts.

use std::path::Path;
use std::time::Duration;

use queue_worker::private_servers::{PostgresOptions, RedisOptions, RedisServer};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::Instant;

use crate::bus::{Bus, Said as Unit};
use crate::common::Scene;
use crate::said::Said;

/// Both stores as they should be.
async fn good_scene() -> Scene {
    Scene::with(RedisOptions::default(), PostgresOptions::default()).await
}

/// Runs it without a bus, or with that of a test.
async fn doctor_with(scene: &Scene, bus: Option<&Bus>, arguments: &[&str]) -> Said {
    let nowhere = format!("unix:path={}", scene.path().join("no-bus").display());
    let mut command = scene.command([&["doctor"], arguments].concat());
    command
        .env("QUEUE_WORKER_WORKER__STATE_DIR", scene.path())
        .env("DBUS_SYSTEM_BUS_ADDRESS", bus.map_or(nowhere.as_str(), Bus::address))
        .env_remove("MANAGERPID");
    command.output().await.expect("run doctor").into()
}

async fn doctor(scene: &Scene) -> Said {
    doctor_with(scene, None, &["--json"]).await
}

/// The checks with this level, and that each says what to do.
#[track_caller]
fn checks(said: &Said, level: &str) -> Vec<String> {
    let report = said.json();
    let findings = report["findings"].as_array().expect("a list").clone();
    for finding in &findings {
        let is_ok = finding["level"] == "ok";
        assert_eq!(finding["remedy"].is_null(), is_ok, "{finding}");
        assert_eq!(finding["why"].is_null(), is_ok, "{finding}");
    }
    let wanted = findings.iter().filter(|finding| finding["level"] == level);
    wanted.map(|finding| finding["check"].as_str().expect("a name").to_owned()).collect()
}

fn found(said: &Said, check: &str) -> Value {
    let report = said.json();
    let findings = report["findings"].as_array().expect("a list").iter();
    let mut findings = findings.filter(|finding| finding["check"] == check);
    findings.next().cloned().unwrap_or_else(|| panic!("no {check}: {report:#}"))
}

#[track_caller]
fn errors_are(said: &Said, expected: &[&str]) {
    assert_eq!(checks(said, "error"), expected, "{said:?}");
    assert_eq!(said.code, Some(i32::from(!expected.is_empty())), "{said:?}");
}

#[tokio::test]
async fn good_stores_have_no_errors_and_the_page_is_for_people() {
    let scene = good_scene().await;
    let said = doctor(&scene).await;
    errors_are(&said, &[]);
    for check in ["redis.policy", "redis.persistence", "postgres.fsync", "postgres.schema"] {
        assert_eq!(found(&said, check)["level"], "ok", "{check}");
    }
    assert_eq!(found(&said, "clock.skew")["level"], "ok");
    assert_eq!(found(&said, "unit.reach")["level"], "note");

    let page = doctor_with(&scene, None, &[]).await.good().text();
    assert!(page.contains("ok       redis.policy           redis 127.0.0.1:"), "{page}");
    assert!(page.contains("\n         remedy: "), "{page}");
    assert!(page.lines().last().expect("a line").starts_with("0 error, "), "{page}");
    let short = doctor_with(&scene, None, &["--quiet"]).await.good().text();
    assert!(!short.contains("\nok ") && !short.starts_with("ok "), "{short}");
}

#[tokio::test]
async fn a_redis_that_evicts_and_forgets() {
    let redis =
        RedisOptions { maxmemory_policy: "allkeys-lru".to_owned(), ..RedisOptions::volatile() };
    let scene = Scene::with(redis, PostgresOptions::default()).await;
    errors_are(&doctor(&scene).await, &["redis.policy", "redis.persistence"]);

    let redis = RedisOptions {
        extra: vec![
            ("appendfsync".to_owned(), "no".to_owned()),
            ("maxmemory".to_owned(), "2mb".to_owned()),
        ],
        ..RedisOptions::default()
    };
    let replica = RedisServer::start(redis).await.expect("start redis");
    scene.write_config_for(&replica.url(), &scene.database, "");
    let mut connection = redis::Client::open(replica.url())
        .expect("a url")
        .get_multiplexed_async_connection()
        .await
        .expect("connect");
    let said = doctor(&scene).await;
    errors_are(&said, &[]);
    assert_eq!(found(&said, "redis.persistence")["level"], "warning");
    // Fills the two megabytes, in which an empty server is nearly at home, as far as they go.
    let filler = redis::cmd("SET").arg("x").arg(vec![0_u8; 1 << 20]).to_owned();
    let _ = filler.query_async::<redis::Value>(&mut connection).await;
    assert_eq!(found(&doctor(&scene).await, "redis.memory")["level"], "warning");
    let mut command = redis::cmd("REPLICAOF");
    command.arg("127.0.0.1").arg(scene.redis.port());
    let () = command.query_async(&mut connection).await.expect("REPLICAOF");
    errors_are(&doctor(&scene).await, &["redis.role"]);
}

#[tokio::test]
async fn what_an_acl_hides_is_told() {
    let scene = good_scene().await;
    let mut connection = scene.redis_connection().await;
    let mut command = redis::cmd("ACL");
    command.arg(&["SETUSER", "shy", "on", ">secret", "~*", "&*", "+@all", "-info", "-config"]);
    let () = command.query_async(&mut connection).await.expect("ACL SETUSER");
    let url = format!("redis://shy:secret@127.0.0.1:{}", scene.redis.port());
    scene.write_config_for(&url, &scene.database, "");
    let said = doctor(&scene).await;
    errors_are(&said, &[]);
    let warnings = checks(&said, "warning");
    for check in ["redis.version", "redis.policy", "redis.persistence"] {
        assert!(warnings.iter().any(|warning| warning == check), "{check}: {warnings:?}");
    }
    let wrong = format!("redis://shy:wrong@127.0.0.1:{}", scene.redis.port());
    scene.write_config_for(&wrong, &scene.database, "");
    let said = doctor(&scene).await;
    errors_are(&said, &["redis.reach"]);
    assert!(!said.text().contains("wrong"), "{said:?}");
}

#[tokio::test]
async fn a_postgres_that_confirms_what_it_may_lose_or_has_no_room() {
    let extra = [
        ("max_connections", "14"),
        ("superuser_reserved_connections", "1"),
        ("max_wal_senders", "0"),
        ("autovacuum", "off"),
        ("default_transaction_isolation", "serializable"),
    ];
    let postgres = PostgresOptions {
        synchronous_commit: false,
        extra: extra.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..PostgresOptions::volatile()
    };
    let scene = Scene::with(RedisOptions::default(), postgres).await;
    let said = doctor(&scene).await;
    errors_are(
        &said,
        &["postgres.fsync", "postgres.commit", "postgres.full_page_writes", "postgres.connections"],
    );
    for check in ["postgres.isolation", "postgres.autovacuum"] {
        assert_eq!(found(&said, check)["level"], "warning", "{check}");
    }
}

#[tokio::test]
async fn a_database_without_a_schema_and_one_that_takes_no_writes() {
    let scene = good_scene().await;
    let empty = scene.postgres.create_database("empty").await.expect("create a database");
    scene.write_config_for(&scene.redis.url(), &empty, "");
    let said = doctor(&scene).await;
    errors_are(&said, &["postgres.schema"]);
    assert!(found(&said, "postgres.schema")["remedy"].as_str().unwrap().contains("migrate"));

    scene.write_config("");
    let statement = "ALTER DATABASE test SET default_transaction_read_only = on";
    sqlx::query(statement).execute(&scene.pool).await.expect("alter the database");
    errors_are(&doctor(&scene).await, &["postgres.writable"]);
}

#[tokio::test]
async fn stores_that_are_away_are_findings_and_cost_no_more_than_their_limits() {
    let mut scene = good_scene().await;
    scene.redis.stop().await;
    scene.postgres.pause();
    let start = Instant::now();
    let said = doctor(&scene).await;
    let took = start.elapsed();
    scene.postgres.resume();
    errors_are(&said, &["redis.reach", "postgres.reach"]);
    assert!(took < Duration::from_secs(15), "{took:?}");
    let told = found(&said, "postgres.reach");
    assert!(told["found"].as_str().unwrap().contains("within 5s"), "{told}");
}

#[tokio::test]
async fn a_lock_node_with_two_names_and_one_that_is_away() {
    let scene = good_scene().await;
    let port = scene.redis.port();
    let other = RedisServer::start(RedisOptions::default()).await.expect("start redis");
    let config = std::fs::read_to_string(scene.config_path()).expect("read the configuration");
    let with = |third: &str| {
        let nodes = format!(
            "\n[lease]\nnodes = [\"redis://127.0.0.1:{port}\", \"{third}\", \"{}\"]\n",
            other.url()
        );
        std::fs::write(scene.config_path(), config.clone() + &nodes).expect("write");
    };
    with(&format!("redis://localhost:{port}"));
    errors_are(&doctor(&scene).await, &["locks.independence"]);

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let closed = listener.local_addr().expect("an address").port();
    drop(listener);
    with(&format!("redis://127.0.0.1:{closed}"));
    let said = doctor(&scene).await;
    errors_are(&said, &[]);
    assert!(checks(&said, "warning").contains(&"locks.reach".to_owned()), "{said:?}");
}

#[tokio::test]
async fn a_unit_that_migrates_is_no_worker() {
    let scene = good_scene().await;
    scene.write_config("[handler.k]\ntype = \"exec\"\ncommand = [\"/bin/true\"]\n");
    let path = scene.config_path();
    let command = |name: &str| {
        let path = path.to_str().expect("text");
        ["queue-worker", name, "--config", path].map(str::to_owned).to_vec()
    };
    let name = "queue-worker-q-migrate.service";
    let unit = Unit {
        name: "queue-worker-q.service".to_owned(),
        command: command("run"),
        beside: Some((name.to_owned(), command("migrate"))),
        ..Unit::default()
    };
    let Some(bus) = Bus::start(unit).await else { return };
    let said = doctor_with(&scene, Some(&bus), &["--json"]).await;
    errors_are(&said, &[]);
    assert_eq!(found(&said, "unit.kill_mode")["about"], "queue-worker-q.service");
    assert!(!said.text().contains(name), "{said:?}");
    // A unit that is named is looked at, whatever starts its worker.
    let named = doctor_with(&scene, Some(&bus), &["--json", "--unit", name]).await;
    errors_are(&named, &["unit.kill_mode"]);
}

#[tokio::test]
async fn a_unit_that_does_not_fit_is_read_from_systemd() {
    let scene = good_scene().await;
    let path = scene.config_path();
    let path = path.to_str().expect("text");
    let unit = Unit {
        command: ["queue-worker", "run", "--config", path].map(str::to_owned).to_vec(),
        ..Unit::default()
    };
    let Some(bus) = Bus::start(unit.clone()).await else { return };
    let look = async || doctor_with(&scene, Some(&bus), &["--json"]).await;
    let said = look().await;
    errors_are(&said, &[]);
    assert_eq!(found(&said, "unit.stop_timeout")["about"], "queue-worker.service");
    assert_eq!(found(&said, "unit.config")["level"], "ok");

    // Without --config the unit tells which file it reads.
    if !Path::new("/etc/queue-worker/queue-worker.toml").exists() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_queue-worker"));
        command.args(["doctor", "--json"]).env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
        command.env_remove("MANAGERPID").env_remove("QUEUE_WORKER_CONFIG");
        let said: Said = command.output().await.expect("run doctor").into();
        errors_are(&said, &[]);
        assert!(found(&said, "unit.config")["found"].as_str().unwrap().contains(path), "{said:?}");
    }

    bus.say(|said| {
        said.stop_usec = 20_000_000;
        said.kill_mode = "control-group".to_owned();
        said.drop_ins = vec!["/run/systemd/system/service.d/zzz-lxc-service.conf".to_owned()];
        said.command[3] = "/elsewhere.toml".to_owned();
    });
    let said = look().await;
    errors_are(&said, &["unit.stop_timeout", "unit.kill_mode"]);
    assert_eq!(found(&said, "unit.credentials")["level"], "note");
    assert_eq!(found(&said, "unit.config")["level"], "warning");

    // What the container has erased is what the configuration needs.
    bus.say(|said| *said = Unit { drop_ins: said.drop_ins.clone(), ..unit.clone() });
    let config = std::fs::read_to_string(path).expect("read the configuration");
    let config = config.replacen("[redis]\n", "[redis]\npassword_file = \"redis\"\n", 1);
    std::fs::write(path, config).expect("write the configuration");
    let erased = look().await;
    assert_eq!(found(&erased, "unit.credentials")["level"], "error");
    bus.say(|said| said.credentials = vec![("redis".to_owned(), "/x".to_owned())]);
    assert_eq!(found(&look().await, "unit.credentials")["level"], "note");

    // Both stores are of this machine, and one of them is a unit.
    bus.say(|said| said.others = vec!["redis-qw.service".to_owned()]);
    assert_eq!(found(&look().await, "unit.order")["level"], "warning");
    bus.say(|said| said.requires.clone_from(&said.others));
    assert_eq!(found(&look().await, "unit.order")["level"], "ok");

    let none = doctor_with(&scene, Some(&bus), &["--json", "--unit", "other.service"]).await;
    assert_eq!(found(&none, "unit.reach")["level"], "note");
    bus.say(|said| said.delay = Duration::from_secs(600));
    assert_eq!(found(&look().await, "unit.reach")["level"], "note");
}
