//! The configuration of an instance in a guest, and what its programs say.
//!
//! The handlers write `ID start FENCE` and `ID end FENCE` into a file of the state directory: `sleep`
//! sleeps for the seconds in its payload in between, `gate` waits for the test. `effect` inserts its
//! id and fence into the table `effects`.

use super::QUEUE;

/// Where the handlers write.
pub fn said_path(state: &str) -> String {
    format!("{state}/said")
}

/// The file that lets the handlers `gate` end.
pub fn gate_path(state: &str) -> String {
    format!("{state}/gate")
}

/// How often `what` (`start` or `end`) is in the text that the handlers wrote.
pub fn count(said: &str, id: &str, what: &str) -> usize {
    let wanted = format!("{id} {what} ");
    said.lines().filter(|line| line.starts_with(&wanted)).count()
}

/// The configuration; `more` holds keys of `[drain]`, then tables.
pub fn config(redis: &str, postgres: &str, state: &str, more: &str) -> String {
    let (said, gate) = (said_path(state), gate_path(state));
    format!(
        r#"
[redis]
url = "{redis}"

[postgres]
url = "{postgres}"

[[queue]]
name = "{QUEUE}"
concurrency = 100

[handler.sleep]
type = "exec"
command = ["/bin/sh", "-c", '''
read -r seconds
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> {said}
sleep "$seconds"
echo "$QUEUE_WORKER_TASK_ID end $QUEUE_WORKER_FENCE" >> {said}
''']

[handler.gate]
type = "exec"
command = ["/bin/sh", "-c", '''
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> {said}
until [ -e {gate} ]; do sleep 0.05; done
echo "$QUEUE_WORKER_TASK_ID end $QUEUE_WORKER_FENCE" >> {said}
''']

[handler.effect]
type = "sql"
statement = "INSERT INTO effects (task_id, fence) VALUES ($2, $3)"

[drain]
{more}
"#
    )
}
