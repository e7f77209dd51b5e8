//! A configuration that is wrong, and passwords that are awkward.

use std::process::Stdio;

use queue_worker::private_servers::{PostgresOptions, RedisOptions};

use crate::common::Scene;

/// The exit code of a broken configuration (sysexits.h, EX_CONFIG).
const BROKEN_CONFIG: i32 = 78;

/// Starts a worker on the scene's configuration; its exit code and what it said.
async fn refused(scene: &Scene) -> (Option<i32>, String) {
    let mut command = scene.command(["run"]);
    command.env("QUEUE_WORKER_WORKER__STATE_DIR", scene.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let limit = std::time::Duration::from_secs(10);
    let output = tokio::time::timeout(limit, command.output()).await;
    let output = output.expect("it ends at once").expect("run the program");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn scenario_17_a_typo_is_named_with_its_line_and_starts_nothing() {
    let scene = Scene::start().await;
    let wrong = [
        ("\n[lease]\nheartbeet = \"1s\"\n", "heartbeet"),
        ("\n[lease]\nttl = \"5s\"\nheartbeat = \"5s\"\n", "heartbeat"),
        ("\n[lease]\nttl = \"5 potatoes\"\n", "potatoes"),
        ("\n[handler.x]\ntype = \"exec\"\ncommand = [\"no-such-program\"]\n", "no-such-program"),
    ];
    for (more, named) in wrong {
        scene.write_config(more);
        let (code, said) = refused(&scene).await;
        assert_eq!(code, Some(BROKEN_CONFIG), "{more}: {said}");
        assert!(said.contains(named), "{more}: {said}");
        let file = scene.config_path().display().to_string();
        let line = said.split(&format!("{file}:")).nth(1).and_then(|rest| {
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
        });
        let line = line.unwrap_or_else(|| panic!("no line named: {said}"));
        let text = std::fs::read_to_string(scene.config_path()).expect("read it");
        let shown = text.lines().nth(line - 1).expect("an existing line");
        assert!(shown.contains(named) || shown.contains("ttl"), "line {line} is {shown:?}: {said}");
    }
}

#[tokio::test]
async fn scenario_17_an_awkward_password_works_and_is_never_logged() {
    let password = "p#a/s+s=w@o%r:d?";
    let redis = RedisOptions { password: Some(password.to_owned()), ..RedisOptions::volatile() };
    let postgres =
        PostgresOptions { password: Some(password.to_owned()), ..PostgresOptions::volatile() };
    let scene = Scene::with(redis, postgres).await;
    let level = ("QUEUE_WORKER_LOG__LEVEL", "trace");

    // In the URLs, as the servers' own addresses have it.
    let mut first = scene.worker_with("url", &[level]).await;
    scene.task("1", "effect", "").await;
    scene.until_status("1", "succeeded").await;
    first.terminate().await;

    // In the environment, as it is.
    let bare = |url: &str| {
        let mut url: url::Url = url.parse().expect("a url");
        url.set_password(None).expect("it has a host");
        url.to_string()
    };
    scene.write_config_for(&bare(&scene.redis.url()), &bare(&scene.database), "");
    let environment = [
        level,
        ("QUEUE_WORKER_REDIS__PASSWORD", password),
        ("QUEUE_WORKER_POSTGRES__PASSWORD", password),
    ];
    let mut second = scene.worker_with("environment", &environment).await;
    scene.task("2", "effect", "").await;
    scene.until_status("2", "succeeded").await;
    second.terminate().await;

    // In files, with the line break that editors leave.
    let file = scene.path().join("password");
    std::fs::write(&file, format!("{password}\n")).expect("write the password");
    let path = file.display().to_string();
    let environment = [
        level,
        ("QUEUE_WORKER_REDIS__PASSWORD_FILE", path.as_str()),
        ("QUEUE_WORKER_POSTGRES__PASSWORD_FILE", path.as_str()),
    ];
    let mut third = scene.worker_with("file", &environment).await;
    scene.task("3", "effect", "").await;
    scene.until_status("3", "succeeded").await;
    third.terminate().await;

    let encoded = scene.redis.url();
    let encoded = encoded.split(['@']).next().and_then(|url| url.rsplit(':').next());
    for worker in [&first, &second, &third] {
        let log = worker.log();
        assert!(!log.contains(password), "{log}");
        assert!(!log.contains(encoded.expect("the URL has a password")), "{log}");
    }
}
