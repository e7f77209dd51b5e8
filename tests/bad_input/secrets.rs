//! Secrets: every character arrives, and nothing ever shows one.

use std::path::PathBuf;

use queue_worker::private_servers::{PostgresOptions, RedisOptions};

use crate::Unit;
use crate::common::{Scene, wait_for};

/// What breaks parsers of URLs, shells and configuration files.
const TRICKY: &str = r#"#/+=@%: ?"'&\$&%41ü"#;

/// A scene whose stores want this password, with a configuration that does not have it.
async fn guarded(password: &str) -> Scene {
    let redis = RedisOptions { password: Some(password.to_owned()), ..RedisOptions::volatile() };
    let postgres =
        PostgresOptions { password: Some(password.to_owned()), ..PostgresOptions::volatile() };
    Scene::with(redis, postgres).await
}

/// The configuration without the passwords.
fn forget_passwords(scene: &Scene) {
    let mut database = url::Url::parse(&scene.database).expect("a URL");
    database.set_password(None).expect("a URL with a host");
    let redis = format!("redis://127.0.0.1:{}/", scene.redis.port());
    scene.write_config_for(&redis, database.as_str(), "");
}

fn secret_file(scene: &Scene, name: &str, bytes: &[u8]) -> PathBuf {
    let file = scene.path().join(name);
    std::fs::write(&file, bytes).expect("write the secret");
    file
}

#[tokio::test]
async fn every_character_of_a_password_arrives() {
    let scene = guarded(TRICKY).await;
    // As the scene wrote it: in the URLs, percent-encoded.
    let unit = Unit::start(&scene, "url", &[]);
    unit.systemd.until_status(&["ready, idle"]).await;
    unit.ends().await;

    forget_passwords(&scene);
    let own = ("QUEUE_WORKER_REDIS__PASSWORD", TRICKY);
    let unit = Unit::start(&scene, "env", &[own, ("QUEUE_WORKER_POSTGRES__PASSWORD", TRICKY)]);
    unit.systemd.until_status(&["ready, idle"]).await;
    unit.ends().await;

    for (name, end) in [("exact", ""), ("newline", "\n"), ("windows", "\r\n")] {
        let file = secret_file(&scene, name, format!("{TRICKY}{end}").as_bytes());
        let file = file.to_str().expect("UTF-8");
        let environment = [
            ("QUEUE_WORKER_REDIS__PASSWORD_FILE", file),
            ("QUEUE_WORKER_POSTGRES__PASSWORD_FILE", file),
        ];
        let unit = Unit::start(&scene, &format!("file-{name}"), &environment);
        unit.systemd.until_status(&["ready, idle"]).await;
        unit.ends().await;
    }

    secret_file(&scene, "credential", TRICKY.as_bytes());
    let environment = [
        ("CREDENTIALS_DIRECTORY", scene.path().to_str().expect("UTF-8")),
        ("QUEUE_WORKER_REDIS__PASSWORD_FILE", "credential"),
        ("QUEUE_WORKER_POSTGRES__PASSWORD_FILE", "credential"),
    ];
    let unit = Unit::start(&scene, "credentials", &environment);
    unit.systemd.until_status(&["ready, idle"]).await;
    unit.ends().await;
}

/// We may be root, whom no file mode stops: a folder, an empty file and no text will do.
#[tokio::test]
async fn a_secret_that_cannot_be_read_is_waited_for() {
    let scene = guarded("sesame-open-7Qz").await;
    forget_passwords(&scene);
    let good = secret_file(&scene, "good", b"sesame-open-7Qz");
    let good = good.to_str().expect("UTF-8");
    for (store, other) in [("REDIS", "POSTGRES"), ("POSTGRES", "REDIS")] {
        let bad = scene.path().join(format!("secret-of-{store}"));
        let bad_name = bad.to_str().expect("UTF-8");
        std::fs::create_dir(&bad).expect("make a folder");
        let environment = [
            (&*format!("QUEUE_WORKER_{store}__PASSWORD_FILE"), bad_name),
            (&*format!("QUEUE_WORKER_{other}__PASSWORD_FILE"), good),
        ];
        let unit = Unit::start(&scene, store, &environment);
        unit.waits_for("Is a directory").await;
        std::fs::remove_dir(&bad).expect("remove the folder");
        unit.keeps_waiting_for("No such file").await;
        std::fs::write(&bad, "").expect("write the secret");
        unit.keeps_waiting_for("is empty").await;
        std::fs::write(&bad, b"\xff\0").expect("write the secret");
        unit.keeps_waiting_for("is not UTF-8").await;
        assert!(unit.systemd.status().contains(bad_name), "{}", unit.systemd.status());
        std::fs::write(&bad, "sesame-open-7Qz").expect("write the secret");
        unit.works_again(&scene, store).await;
        unit.ends().await;
    }
}

#[tokio::test]
async fn nothing_shows_a_secret() {
    let secret = format!("s3cret{}", uuid::Uuid::new_v4().simple());
    let scene = guarded(&secret).await;
    let mut shown = Vec::new();
    for command in ["check-config", "migrate"] {
        let output = scene.command([command]).output().await.expect("run queue-worker");
        assert!(output.status.success(), "{output:?}");
        shown.push(format!("{output:?}"));
    }
    // The wrong half of it, so that the stores refuse what is as secret.
    let wrong = format!("{secret}x");
    let wrong_file = secret_file(&scene, "wrong", wrong.as_bytes());
    let trace = ("QUEUE_WORKER_LOG__LEVEL", "trace");
    let by_url = Unit::start(&scene, "url", &[trace]);
    by_url.systemd.until_status(&["ready, idle"]).await;
    forget_passwords(&scene);
    let environment = [
        trace,
        ("QUEUE_WORKER_REDIS__PASSWORD_FILE", wrong_file.to_str().expect("UTF-8")),
        ("QUEUE_WORKER_POSTGRES__PASSWORD", wrong.as_str()),
    ];
    let refused = Unit::start(&scene, "refused", &environment);
    refused.systemd.until_status(&["not ready", "redis", "postgres"]).await;
    for arguments in [["enqueue", "q", "--kind=k", "--payload=p"].as_slice(), &["migrate"]] {
        let output = scene
            .command(arguments.iter().copied())
            .envs(environment)
            .output()
            .await
            .expect("run queue-worker");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        shown.push(format!("{output:?}"));
    }
    scene.task("t", "exit", "3").await;
    wait_for("a failure", async || scene.row("t").await.is_some_and(|row| row.error.is_some()))
        .await;
    for unit in [&by_url, &refused] {
        let pid = unit.worker.child.id().expect("it runs");
        shown.push(std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("cmdline"));
        unit.worker.signal(rustix::process::Signal::HUP);
        unit.worker.until_logged("reload").await;
        shown.push(unit.worker.log());
        shown.push(unit.systemd.statuses().join("\n"));
    }
    shown.push(format!("{:?}", scene.row("t").await));
    for text in &shown {
        assert!(!text.is_empty());
        assert!(!text.contains(&secret), "{}", around(text, &secret));
    }
    by_url.ends().await;
    refused.ends().await;
}

/// The place where it stands.
fn around(text: &str, secret: &str) -> String {
    text.lines().filter(|line| line.contains(secret)).take(3).collect::<Vec<_>>().join("\n")
}

/// A task sees neither the secrets nor the socket of systemd in its environment.
#[tokio::test]
async fn a_task_gets_no_secret() {
    let secret = format!("s3cret{}", uuid::Uuid::new_v4().simple());
    let scene = guarded(&secret).await;
    forget_passwords(&scene);
    let environment = [
        ("QUEUE_WORKER_REDIS__PASSWORD", secret.as_str()),
        ("QUEUE_WORKER_POSTGRES__PASSWORD", secret.as_str()),
        ("QUEUE_WORKER_HANDLER__env__TYPE", "exec"),
        ("QUEUE_WORKER_HANDLER__env__COMMAND", r#"["/usr/bin/env"]"#),
    ];
    let unit = Unit::start(&scene, "a", &environment);
    scene.task("t", "env", "").await;
    let row = scene.until_status("t", "succeeded").await;
    let told = String::from_utf8(row.result.expect("a result")).expect("text");
    assert!(told.contains("QUEUE_WORKER_TASK_ID=t\n"), "{told}");
    for hidden in [secret.as_str(), "PASSWORD", "NOTIFY_SOCKET", "WATCHDOG_USEC"] {
        assert!(!told.contains(hidden), "{told}");
    }
    unit.ends().await;
}
