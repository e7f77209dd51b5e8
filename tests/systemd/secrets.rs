//! Passwords as credentials of the unit, in a container whose generator erases them.

use std::rc::Rc;

use crate::Machine;
use crate::common::Verdict;
use crate::guest::Guest;
use crate::service::Service;
use crate::unit::{CONTAINER_DROP_IN, Committed};

/// What LXC's generator writes for every service of a guest.
const LXC: &str = "[Service]\n\
    ProcSubset=all\nProtectProc=default\nProtectControlGroups=no\nProtectKernelTunables=no\n\
    NoNewPrivileges=no\nLoadCredential=\nPrivateNetwork=no\n";
const LXC_PATH: &str = "/run/systemd/system/service.d/zzz-lxc-service.conf";

/// What the container's unit reads, for root alone: the password, and its environment.
const SECRET: &str = "/run/secrets/queue-worker-postgres";
const ENVIRONMENT: &str = "/run/secrets/queue-worker.env";
const PASSWORD: &str = "a-password-that-nobody-may-see";

/// The generator's drop-in takes the credential away; ours sorts after it and gives it back.
pub(crate) async fn in_lxc(machine: Rc<Machine>) -> Verdict {
    let guest = &machine.guest;
    let service = Service::with(guest, "credentials-in-lxc", Committed::Container).await;
    let _generator = Generator::write(guest);
    write(guest).await;
    let (name, ours) = CONTAINER_DROP_IN;
    service.drop_in("50-credentials.conf", ours).await;
    service.systemctl("start").await;
    service.until_logged("secret file").await;
    let log = service.log().await;
    let complaint = log.lines().find(|line| line.contains("secret file"));
    let complaint = complaint.unwrap_or_else(|| panic!("nothing of the secret file:\n{log}"));
    let complaint = complaint.to_owned();
    service.systemctl("stop").await;

    service.drop_in(name, ours).await;
    service.start().await;
    service.scene.task("t", "sleep", "0").await;
    service.scene.until_status("t", "succeeded").await;
    assert_eq!(service.logged(PASSWORD).await, 0);
    let environment = format!("/proc/{}/environ", service.pid().await);
    assert!(!guest.run(["cat", &environment]).await.contains(PASSWORD));
    service.stop_clean().await;
    Verdict::Passed(format!("with {name} it works, without: {complaint}"))
}

/// Writes what the container's unit reads.
pub(crate) async fn write(guest: &Guest) {
    guest.write(ENVIRONMENT, "QUEUE_WORKER_POSTGRES__PASSWORD_FILE=postgres\n");
    guest.write(SECRET, PASSWORD);
    guest.run(["chmod", "600", SECRET, ENVIRONMENT]).await;
}

/// The generator's drop-in, which concerns every service; taken away when dropped.
pub(crate) struct Generator<'a>(&'a Guest);

impl<'a> Generator<'a> {
    pub(crate) fn write(guest: &'a Guest) -> Self {
        guest.write(LXC_PATH, LXC);
        Self(guest)
    }
}

impl Drop for Generator<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0.path(LXC_PATH));
        self.0.run_blocking(&["systemctl", "daemon-reload"]);
    }
}
