//! The data folder of a private Postgres, made by `initdb`.
//!
//! `initdb` takes a second or two, so temporary clusters without a password are copied from a
//! template in the temporary folder, made once for each build of Postgres and each user. The
//! template appears by a rename, whole or not at all, and is used only if it belongs to the user
//! that Postgres runs as.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::account::Account;
use super::error::PrivateServerError;
use super::folder::{temporary, temporary_parent};
use super::process::wrapped;

/// The superuser of every private cluster.
pub(super) const SUPERUSER: &str = "postgres";

/// Programs and user of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    /// The folder of `initdb` and `postgres`.
    pub(super) programs: PathBuf,
    /// Whom they run as, if not as ourselves.
    pub(super) account: Option<Account>,
}

impl Cluster {
    /// Makes the data folder `data`, which must not exist yet, with a password for the superuser
    /// if one is given.
    pub(super) async fn initialise(
        &self,
        data: &Path,
        password: Option<&str>,
    ) -> Result<(), PrivateServerError> {
        let mut arguments = vec!["--encoding=UTF8", "--locale=C", "--no-instructions"];
        // Written next to the data and gone before the server starts.
        let secret = data.with_extension("password");
        let pwfile = format!("--pwfile={}", secret.display());
        if let Some(password) = password {
            self.write_secret(&secret, password)?;
            arguments.extend(["--auth=scram-sha-256", pwfile.as_str()]);
        } else {
            arguments.push("--auth=trust");
        }
        let done = self.initdb(data, &arguments).await;
        if password.is_some() {
            fs::remove_file(&secret).map_err(PrivateServerError::file("remove", &secret))?;
        }
        done
    }

    /// Copies the template to `data`, which must not exist yet; makes the template if needed.
    pub(super) async fn copy_template(&self, data: &Path) -> Result<(), PrivateServerError> {
        let template = self.template().await?;
        let mut copy = Command::new("cp");
        copy.arg("-a").arg("--reflink=auto").arg(&template).arg(data);
        run(copy, "cp").await.map(drop)
    }

    async fn template(&self) -> Result<PathBuf, PrivateServerError> {
        let owner =
            self.account.as_ref().map_or(rustix::process::geteuid().as_raw(), |user| user.uid);
        let program = self.programs.join("postgres");
        let mut version = Command::new(&program);
        version.arg("--version");
        let version = run(version, "postgres --version").await?;
        let version: String = String::from_utf8_lossy(&version.stdout)
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
            .collect();
        let parent = temporary_parent(self.account.as_ref())?;
        let template = parent.join(format!("queue-worker-initdb-{version}-{owner}"));
        if is_whole(&template, owner) {
            return Ok(template);
        }
        let scratch = temporary(self.account.as_ref())?;
        let home = scratch.path().join("home");
        self.make_home(&home)?;
        let data = home.join("data");
        // Small WAL segments: 1 MiB to copy instead of 16, and nobody measures on a template.
        let arguments =
            ["--encoding=UTF8", "--locale=C", "--auth=trust", "--no-sync", "--wal-segsize=1"];
        self.initdb(&data, &arguments).await?;
        match fs::rename(&data, &template) {
            Ok(()) => Ok(template),
            // Another process made it meanwhile.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists
                ) && is_whole(&template, owner) =>
            {
                Ok(template)
            }
            Err(error) => Err(PrivateServerError::file("rename to", &template)(error)),
        }
    }

    /// A folder in which the user may create files.
    pub(super) fn make_home(&self, home: &Path) -> Result<(), PrivateServerError> {
        fs::create_dir_all(home).map_err(PrivateServerError::file("create", home))?;
        fs::set_permissions(home, fs::Permissions::from_mode(0o700))
            .map_err(PrivateServerError::file("restrict", home))?;
        self.account.as_ref().map_or(Ok(()), |account| account.give(home))
    }

    fn write_secret(&self, file: &Path, secret: &str) -> Result<(), PrivateServerError> {
        fs::write(file, "").map_err(PrivateServerError::file("write", file))?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600))
            .map_err(PrivateServerError::file("restrict", file))?;
        fs::write(file, secret).map_err(PrivateServerError::file("write", file))?;
        self.account.as_ref().map_or(Ok(()), |account| account.give(file))
    }

    async fn initdb(&self, data: &Path, arguments: &[&str]) -> Result<(), PrivateServerError> {
        let mut command = wrapped(&self.programs.join("initdb"), self.account.as_ref(), None);
        command.arg("--username").arg(SUPERUSER).arg("--pgdata").arg(data).args(arguments);
        if let Some(home) = data.parent() {
            command.current_dir(home);
        }
        run(command, "initdb").await.map(drop)
    }
}

/// Whether `template` is a complete cluster that belongs to `owner`.
fn is_whole(template: &Path, owner: u32) -> bool {
    fs::symlink_metadata(template).is_ok_and(|meta| meta.is_dir() && meta.uid() == owner)
        && template.join("PG_VERSION").is_file()
        && template.join("global/pg_control").is_file()
}

/// Runs a short program to its end, or ends it when the caller stops waiting.
async fn run(mut command: Command, program: &str) -> Result<Output, PrivateServerError> {
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    let output =
        tokio::process::Command::from(command).kill_on_drop(true).output().await.map_err(
            |source| PrivateServerError::Execute { program: program.to_owned(), source },
        )?;
    if output.status.success() {
        return Ok(output);
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    let output = text.trim().to_owned();
    Err(PrivateServerError::Failed { program: program.to_owned(), output })
}
