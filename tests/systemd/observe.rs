//! What an operator asks: the journal by task, and how far the unit is locked up.

use std::rc::Rc;

use serde_json::Value;

use crate::Machine;
use crate::common::Verdict;
use crate::guest::OLD;
use crate::service::Service;
use crate::unit::{self, Committed};

/// `journalctl TASK_ID=…` finds the lines of a task, and only those.
pub(crate) async fn journal(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "journal-fields").await;
    service.start().await;
    for id in ["wanted", "other"] {
        service.scene.task(id, "sleep", "0").await;
        service.scene.until_status(id, "succeeded").await;
    }
    service.stop_clean().await;
    let words = ["journalctl", "--no-pager", "--output=json", "TASK_ID=wanted"];
    let lines = machine.guest.run(words).await;
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    assert!(!lines.is_empty(), "no line of the task:\n{}", service.log().await);
    for line in &lines {
        assert_eq!(line["TASK_ID"], "wanted");
        assert_eq!(line["_SYSTEMD_UNIT"], service.unit());
        assert_eq!(line["SYSLOG_IDENTIFIER"], "queue-worker");
        assert_eq!(line["FENCE"], "1");
    }
    let fields = lines[0].as_object().expect("an object").keys();
    let own: Vec<&str> = fields
        .map(String::as_str)
        .filter(|name| {
            !name.starts_with('_') && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        })
        .collect();
    Verdict::Passed(format!("{} lines; fields {}", lines.len(), own.join(" ")))
}

/// `queue-worker doctor` finds no error in the committed unit, and names what a drop-in spoils.
pub(crate) async fn doctor(machine: Rc<Machine>) -> Verdict {
    let service = Service::new(&machine.guest, "doctor").await;
    service.start().await;
    let healthy = unit_errors(&service).await;
    assert_eq!(healthy, Vec::<String>::new(), "errors in the committed unit");
    let drop_in = "[Service]\nTimeoutStopSec=5\nKillMode=process\n";
    service.drop_in("99-spoilt.conf", drop_in).await;
    let spoilt = unit_errors(&service).await;
    assert_eq!(spoilt, ["unit.kill_mode", "unit.stop_timeout"]);
    service.stop_clean().await;
    Verdict::Passed(format!("finds {}", spoilt.join(" and ")))
}

/// What the doctor calls errors of the unit, in order.
async fn unit_errors(service: &Service) -> Vec<String> {
    let (unit, config) = (service.unit(), service.config_path());
    let words = [OLD, "doctor", "--json", "--unit", &unit, "--config", &config];
    let output = service.guest.try_run(words).await;
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    let findings = report["findings"].as_array().expect("a list of findings");
    let errors = findings.iter().filter(|finding| finding["level"] == "error");
    let checks = errors.filter_map(|finding| finding["check"].as_str());
    let mut checks: Vec<String> =
        checks.filter(|check| check.starts_with("unit.")).map(str::to_owned).collect();
    checks.sort();
    checks
}

/// `systemd-analyze security` of each committed unit is within its target.
pub(crate) async fn security(machine: Rc<Machine>) -> Verdict {
    let mut figures = Vec::new();
    for unit in Committed::ALL {
        let instance = unit.instance();
        let path = format!("/run/security/{}", unit::name(instance));
        machine.guest.write(&path, &unit.text(instance, OLD));
        let words = ["systemd-analyze", "security", "--no-pager", "--offline=true", &path];
        let report = machine.guest.run(words).await;
        let (exposure, most) = (exposure(&report), f64::from(unit.most_exposure()) / 10.0);
        assert!(exposure <= most, "{instance}: {exposure}, more than {most}:\n{report}");
        figures.push(format!("{instance} {exposure} of {most}"));
    }
    Verdict::Passed(figures.join(", "))
}

fn exposure(report: &str) -> f64 {
    let last = report.lines().rfind(|line| line.contains("Overall exposure level"));
    let words = last.unwrap_or_default().split_once(": ").map_or("", |(_, rest)| rest);
    words.split(' ').next().and_then(|word| word.parse().ok()).expect("an exposure level")
}
