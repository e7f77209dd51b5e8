//! A small drill: the promises under every kind of fault, in about a minute.
//!
//! The count is the drill's own, from outside of the workers; what broke is named in its report.
//! The same seed is the same plan and the same faults, so a failure here can be looked into with
//! `queue-worker drill --seed N --keep`.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

/// Longer than the drill ever takes: it has limits of its own.
const LIMIT: Duration = Duration::from_secs(330);

async fn drill(arguments: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_queue-worker"))
        .args(["drill", "--json"])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, output).await.expect("an end in time");
    let output = output.expect("run the drill");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    (output.status.code(), report)
}

#[tokio::test]
async fn nothing_is_lost_done_twice_or_left_behind() {
    let arguments = ["--tasks", "1500", "--workers", "3", "--minutes", "0.67", "--seed", "1"];
    let (code, report) = drill(&arguments).await;
    // How soon is judged too: other tests take the cores, but the drill sees how late it is itself.
    assert_eq!(report["breaches"], serde_json::json!([]), "{report:#}");
    assert_eq!(code, Some(0), "{report:#}");
    for name in ["lost", "duplicate_effects", "zombie_locks", "dead", "wrong_attempts"] {
        assert_eq!(report[name], 0, "{name}: {report:#}");
    }
    let kills = report["process_kills"].as_u64().expect("a number");
    assert!(kills >= 10, "{kills} kills: {report:#}");
    for fault in ["freeze", "terminate", "cut-redis", "cut-postgres", "drop-ack"] {
        assert!(report["faults"][fault].as_u64() >= Some(1), "{fault}: {report:#}");
    }
    for store in ["restart-redis", "restart-postgres"] {
        assert_eq!(report["faults"][store], 1, "{report:#}");
    }
    // No breach can hide behind a worker that was never given anything, or behind outages.
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report:#}"));
    let judged = number("kills_with_tasks") - number("kills_left_out");
    assert!(judged >= 1, "{judged} kills were judged: {report:#}");
    assert!(number("kills_with_tasks") >= 3, "{report:#}");
    assert!(number("recoveries") >= 1, "{report:#}");
    assert!(report["external_reruns"].as_u64() >= Some(1), "{report:#}");
}

#[tokio::test]
async fn an_unknown_fault_is_a_usage_error() {
    let status = Command::new(env!("CARGO_BIN_EXE_queue-worker"))
        .args(["drill", "--faults", "kill,earthquake"])
        .stderr(Stdio::null())
        .status()
        .await
        .expect("run the drill");
    assert_eq!(status.code(), Some(2));
}
