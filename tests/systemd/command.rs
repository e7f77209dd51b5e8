//! The command line with what the unit of an instance has: the script that the module makes, and the
//! function that docs/guides/troubleshooting.md gives to others.
//!
//! Both run the program by systemd-run, which must neither change its arguments nor outlive the caller.

use std::rc::Rc;

use crate::Machine;
use crate::common::{QUEUE, STREAM, Verdict, wait_for};
use crate::guest::OLD;
use crate::secrets;
use crate::service::Service;
use crate::unit::{self, CONTAINER_DROP_IN, Committed};

/// Where the script is put.
const SCRIPT: &str = "/run/queue-worker-command-line";
/// The option that leaves the arguments alone, and the first systemd that knows it.
const UNCHANGED: &str = " --expand-environment=no";
const KNOWS_UNCHANGED: u32 = 254;
/// What systemd, and a shell, would make something else of.
const PAYLOAD: &str = r#"{"text":"Hi ${USER}, $$5 for $HOME, 100 %n"}"#;
/// The pages' function.
const PAGE: &str = include_str!("../../docs/guides/troubleshooting.md");

/// The module's script: arguments, credentials in a container, and an end when it is told to end.
pub(crate) async fn on_nixos(machine: Rc<Machine>) -> Verdict {
    let guest = &machine.guest;
    let service = Service::with(guest, "command-line", Committed::Container).await;
    let _generator = secrets::Generator::write(guest);
    secrets::write(guest).await;
    let knows = guest.systemd_version().await >= KNOWS_UNCHANGED;
    let text = unit::command_text(&service.name, OLD);
    assert!(text.contains(UNCHANGED), "{text}");
    guest.write(SCRIPT, &if knows { text } else { text.replace(UNCHANGED, "") });

    let output = guest.try_run(["bash", SCRIPT, "status"]).await;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("secret file"), "a status without its credential: {complaint}");
    let (file, drop_in) = CONTAINER_DROP_IN;
    guest.write(&unit::command_drop_in(&service.name, file), drop_in);
    service.daemon_reload().await;
    guest.run(["bash", SCRIPT, "status"]).await;

    let words = ["enqueue", QUEUE, "--kind", "effect", "--id", "t", "--payload", PAYLOAD];
    guest.run(["bash", SCRIPT].into_iter().chain(words)).await;
    if knows {
        assert_eq!(payload(&service).await, PAYLOAD);
    }
    ends_what_it_began(&service).await;
    Verdict::Passed(if knows {
        "arguments, credentials, and an end".to_owned()
    } else {
        format!("credentials and an end; this systemd does not know {}", UNCHANGED.trim())
    })
}

/// Tells the script to end while it watches, and looks for what is left.
async fn ends_what_it_began(service: &Service) {
    let guest = &service.guest;
    let mut watching = guest.command(["bash", SCRIPT, "status", "--watch"]);
    let mut watching = watching.stdout(std::process::Stdio::null()).spawn().expect("run nsenter");
    wait_for("the watching unit", async || running(service).await.contains("running")).await;
    let listed = running(service).await;
    let shell = listed.split_once('@').and_then(|(_, rest)| rest.split_once('.'));
    let shell = shell.and_then(|(pid, _)| pid.parse().ok());
    guest.kill("TERM", shell.unwrap_or_else(|| panic!("a process id in {listed:?}"))).await;
    watching.wait().await.expect("wait for nsenter");
    assert_eq!(running(service).await, "", "it goes on");
}

/// The units of the script, as systemctl lists them.
async fn running(service: &Service) -> String {
    let pattern = unit::command_pattern(&service.name);
    service
        .guest
        .run(["systemctl", "list-units", "--all", "--plain", "--no-legend", &pattern])
        .await
}

/// The function of the page leaves arguments alone, whatever the version of systemd.
pub(crate) async fn on_another_distribution(machine: Rc<Machine>) -> Verdict {
    let guest = &machine.guest;
    let service = Service::with(guest, "command-line-other", Committed::Other).await;
    let configuration = guest.read(&service.config_path());
    guest.write("/etc/queue-worker/queue-worker.toml", &configuration);
    let script = format!("{}\nqw \"$@\"", function());
    let words = ["enqueue", QUEUE, "--kind", "effect", "--id", "t", "--payload", PAYLOAD];
    guest.run(["bash", "-c", &script, "qw"].into_iter().chain(words)).await;
    assert_eq!(payload(&service).await, PAYLOAD);
    Verdict::Passed(String::new())
}

/// `qw() { … }`, with this machine's program.
fn function() -> String {
    let start = PAGE.find("qw() {").expect("the page has the function");
    let end = PAGE[start..].find("\n}").expect("which ends");
    PAGE[start..start + end + 2].replace("/usr/local/bin/queue-worker", OLD)
}

/// The payload of the one task in the stream.
async fn payload(service: &Service) -> String {
    type Entries = Vec<(String, Vec<(String, String)>)>;
    let mut connection = service.scene.redis_connection().await;
    let mut command = redis::cmd("XRANGE");
    command.arg(STREAM).arg("-").arg("+");
    let entries: Entries = command.query_async(&mut connection).await.expect("read the stream");
    let [(_, fields)] = &entries[..] else { panic!("not one task: {entries:?}") };
    let found = fields.iter().find(|(field, _)| field == "payload");
    found.map(|(_, payload)| payload.clone()).expect("a payload")
}
