//! The image of the containers: a minimal Debian with systemd.
//!
//! `debootstrap` makes it once per target directory; it takes a minute and the network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// How long making it may take.
const LIMIT: Duration = Duration::from_secs(240);
/// What the image holds besides the essential packages.
const PACKAGES: &str = "--include=systemd,systemd-sysv,dbus";
const MIRROR: &str = "http://deb.debian.org/debian";
/// Where debootstrap knows its releases from.
const SCRIPTS: &str = "/usr/share/debootstrap/scripts";
const METADATA: &str = "architecture: x86_64\n\
    creation_date: 1700000000\n\
    properties:\n  os: debian\n  description: minimal Debian with systemd\n";
/// The tar file of the image, made if it is not there; else why it cannot be made.
pub(crate) async fn ready() -> Result<PathBuf, String> {
    let release = release()?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let image = target.join(format!("incus-{release}.tar"));
    if image.is_file() {
        return Ok(image);
    }
    println!("making an image of Debian {release}, once per target directory");
    let folder = tempfile::tempdir_in(target).map_err(|error| format!("make a folder: {error}"))?;
    let root = folder.path().join("rootfs");
    let root_text = root.to_str().ok_or("the target directory is not UTF-8")?;
    run("debootstrap", &["--variant=minbase", PACKAGES, &release, root_text, MIRROR]).await?;
    // Empty: each container makes its own, and asks nobody on its console.
    fs::write(root.join("etc/machine-id"), "").map_err(|error| error.to_string())?;
    fs::write(folder.path().join("metadata.yaml"), METADATA).map_err(|error| error.to_string())?;
    // Beside it and renamed, so that a half of it is never taken for the whole.
    let fresh = folder.path().join("image.tar");
    let (from, to) = (folder.path().to_str(), fresh.to_str());
    let (Some(from), Some(to)) = (from, to) else { return Err("a path is not UTF-8".to_owned()) };
    let tar = ["--numeric-owner", "-C", from, "-cf", to, "metadata.yaml", "rootfs"];
    run("tar", &tar).await?;
    fs::rename(&fresh, &image).map_err(|error| format!("keep the image: {error}"))?;
    Ok(image)
}

/// The release of this machine, whose libraries the program was linked with.
fn release() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let release = field("VERSION_CODENAME");
    if field("ID") != "debian" || !Path::new(SCRIPTS).join(&release).exists() {
        return Err(format!("the image is made of Debian, and this is {}", field("PRETTY_NAME")));
    }
    Ok(release)
}

async fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LIMIT, output).await.map_err(|_| format!("{program}: {LIMIT:?} over"))?;
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}: {} {}", output.status, last.join("; "), errors.trim()))
}
