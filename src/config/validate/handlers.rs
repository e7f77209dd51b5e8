//! The rules about handlers; those about handlers of commits stand with their keys, in `git`.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Rules;
use crate::config::duration::format_duration as show;
use crate::config::environment::Environment;
use crate::config::handlers::{ExecSettings, HandlerAction, HandlerSettings, HttpSettings};
use crate::config::size::ByteSize;

/// What the dynamic linker and the C library take, some, and a little for the program.
const LEAST_MEMORY: ByteSize = ByteSize::mib(1);

/// The most processes and threads of a machine (PID_MAX_LIMIT of Linux).
const MAX_PIDS: usize = 4_194_304;

/// The largest `cpu.weight` of cgroup v2.
const MAX_WEIGHT: usize = 10_000;

/// Where execvp(3) looks without PATH.
pub(in crate::config) const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

impl Rules<'_> {
    pub(super) fn handler(
        &mut self,
        key: &str,
        handler: &HandlerSettings,
        environment: &Environment,
    ) {
        let common = &handler.common;
        let max_attempts = usize::try_from(common.max_attempts).unwrap_or(usize::MAX);
        self.range(&format!("{key}.max_attempts"), max_attempts, 1, 1_000);
        if common.backoff_base > common.backoff_max {
            self.broken(
                &[&format!("{key}.backoff_base"), &format!("{key}.backoff_max")],
                format!(
                    "the first delay {} is longer than the longest {}",
                    show(common.backoff_base),
                    show(common.backoff_max)
                ),
                "lower backoff_base, or raise backoff_max",
            );
        }
        match &handler.action {
            HandlerAction::Exec(exec) => self.exec(key, exec, environment.get("PATH")),
            HandlerAction::Sql(sql) => {
                self.range(&format!("{key}.batch"), sql.batch, 1, 256);
                if sql.statement.trim().is_empty() {
                    self.broken(&[&format!("{key}.statement")], "is empty", "write a statement");
                }
            }
            HandlerAction::Http(http) => self.http(key, http),
            HandlerAction::Git(git) => self.git(key, common, git, environment.get("PATH")),
        }
    }

    fn exec(&mut self, key: &str, exec: &ExecSettings, path: Option<&OsStr>) {
        self.limits(key, exec);
        let command = format!("{key}.command");
        // The program is looked for with the PATH that it gets.
        let given = exec.environment.get("PATH").map(OsStr::new);
        let path = given.or(path).unwrap_or(OsStr::new(DEFAULT_PATH));
        if exec.working_dir.as_ref().is_some_and(|directory| directory.is_relative()) {
            let remedy = "write it from the root: \"/var/lib/…\"";
            self.broken(&[&format!("{key}.working_dir")], "is a relative path", remedy);
        }
        let Some(program) = exec.command.first().filter(|program| !program.is_empty()) else {
            let remedy = r#"write the program and its arguments: ["/usr/bin/env", "true"]"#;
            self.broken(&[&command], "names no program", remedy);
            return;
        };
        if program.contains('/') {
            if !Path::new(program).is_absolute() {
                let remedy = "write it from the root, or only its name if it is on PATH";
                self.broken(&[&command], format!("{program:?} is a relative path"), remedy);
            }
        } else if !on_path(program, path) {
            let hint = if program.contains(char::is_whitespace) {
                r#"; there is no shell: write ["program", "argument"]"#
            } else {
                ""
            };
            let remedy = format!("install it, or write its absolute path{hint}");
            self.broken(&[&command], format!("{program:?} is not on PATH"), remedy);
        }
        if exec.command.iter().any(|argument| argument.contains('\0')) {
            self.broken(&[&command], "contains a NUL character", "remove it");
        }
        let bad_name = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = exec.environment.keys().find(bad_name) {
            let message = format!("{name:?} is not the name of a variable");
            self.broken(&[&format!("{key}.environment")], message, "write NAME = \"value\"");
        }
    }

    fn limits(&mut self, key: &str, exec: &ExecSettings) {
        if let Some(size) = exec.memory_max.filter(|size| *size < LEAST_MEMORY) {
            let remedy = format!("raise it to at least \"{LEAST_MEMORY}\"");
            let message = format!("in {size} no program can even start");
            self.broken(&[&format!("{key}.memory_max")], message, remedy);
        }
        for (name, value, max) in
            [("pids_max", exec.pids_max, MAX_PIDS), ("cpu_weight", exec.cpu_weight, MAX_WEIGHT)]
        {
            let value = value.map(|value| usize::try_from(value).unwrap_or(usize::MAX));
            self.range(&format!("{key}.{name}"), value.unwrap_or(1), 1, max);
        }
    }

    fn http(&mut self, key: &str, http: &HttpSettings) {
        self.scheme(&format!("{key}.url"), &http.url, &["http", "https"]);
        if let Some(proxy) = &http.proxy {
            self.scheme(&format!("{key}.proxy"), proxy, &["http", "https"]);
        }
        let headers = format!("{key}.headers");
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let bad = |name: &&String| name.is_empty() || !name.chars().all(token);
        if let Some(name) = http.headers.keys().chain(http.header_files.keys()).find(bad) {
            let message = format!("{name:?} is not the name of a header");
            self.broken(&[&headers, &format!("{key}.header_files")], message, "correct the name");
        }
        let secret = |name: &&String| {
            ["authorization", "proxy-authorization", "cookie"]
                .contains(&name.to_ascii_lowercase().as_str())
        };
        if let Some(name) = http.headers.keys().find(secret) {
            let message = format!("{name:?} is a secret, and secrets do not belong in this file");
            self.broken(&[&headers], message, "use bearer_file or header_files");
        }
        if http.headers.values().any(|value| value.contains(['\r', '\n', '\0'])) {
            self.broken(&[&headers], "a value has a line break", "remove it");
        }
    }
}

/// Whether an executable file of that name is in one of the directories.
pub(in crate::config) fn on_path(program: &str, path: &OsStr) -> bool {
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .any(|directory| is_program(&directory.join(program)))
}

/// Whether an executable file is there.
pub(in crate::config) fn is_program(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
