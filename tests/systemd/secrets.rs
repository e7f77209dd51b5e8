//! Passwords as credentials of the unit, in a container whose generator erases them.

use std::rc::Rc;

use queue_worker::private_servers::{PostgresOptions, RedisOptions};

use crate::Machine;
use crate::common::{Scene, Verdict};
use crate::guest::Guest;
use crate::service::Service;

const PASSWORD: &str = "a password that nobody may see";
/// What LXC's generator writes for every service of a guest.
const LXC: &str = "[Service]\n\
    ProcSubset=all\nProtectProc=default\nProtectControlGroups=no\nProtectKernelTunables=no\n\
    NoNewPrivileges=no\nLoadCredential=\nPrivateNetwork=no\n";
const LXC_PATH: &str = "/run/systemd/system/service.d/zzz-lxc-service.conf";

/// Where the password lies, for root alone.
const FILE: &str = "/etc/queue-worker/redis-password";
/// What the module writes for a container.
const OURS: &str = "zzzz-queue-worker.conf";

/// The generator's drop-in takes the credential away; ours sorts after it and gives it back.
pub(crate) async fn in_lxc(machine: Rc<Machine>) -> Verdict {
    let guest = &machine.guest;
    let redis = RedisOptions { password: Some(PASSWORD.to_owned()), ..RedisOptions::default() };
    let scene = Scene::with(redis, PostgresOptions::volatile()).await;
    let url = format!("redis://127.0.0.1:{}/", scene.redis.port());
    let service = Service::with(guest, "credentials-in-lxc", scene, "").await;
    guest.write(FILE, PASSWORD);
    guest.run(["chmod", "600", FILE]).await;
    let credential = format!("LoadCredential=redis:{FILE}\n");
    let environment = format!(
        "Environment=QUEUE_WORKER_REDIS__URL={url}\n\
         Environment=QUEUE_WORKER_REDIS__PASSWORD_FILE=redis\n"
    );
    let generator = Generator::write(guest);
    service.drop_in("50-credentials.conf", &(credential.clone() + &environment)).await;
    service.systemctl("start").await;
    let without = service.until_status("not ready: ").await;
    service.systemctl("stop").await;

    service.drop_in(OURS, &credential).await;
    service.start().await;
    service.scene.task("t", "sleep", "0").await;
    service.scene.until_status("t", "succeeded").await;
    assert_eq!(service.logged(PASSWORD).await, 0);
    service.stop_clean().await;
    drop(generator);
    Verdict::Passed(format!("erased: {without:?}; with {OURS} it works"))
}

/// The generator's drop-in, which concerns every service; taken away when dropped.
struct Generator<'a>(&'a Guest);

impl<'a> Generator<'a> {
    fn write(guest: &'a Guest) -> Self {
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
