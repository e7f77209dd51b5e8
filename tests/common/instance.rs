//! The configuration of an instance, and the journal that its handlers write.
//!
//! The handlers `sleep` and `gate` write `ID start FENCE` and `ID end FENCE` into the journal, and
//! answer `fence FENCE`. In between, one sleeps for the seconds in its payload, the other waits until
//! the test opens the gate, for all or for the runs of one fence. `effect` inserts its id and fence
//! into the table `effects`.

use super::QUEUE;

/// Where the handlers write, given the folder of an instance.
pub fn journal_path(folder: &str) -> String {
    format!("{folder}/journal")
}

/// The file that lets the handlers `gate` end.
pub fn gate_path(folder: &str) -> String {
    format!("{folder}/gate")
}

/// The lines of a journal: id, `start` or `end`, fence.
pub fn lines(journal: &str) -> impl Iterator<Item = (&str, &str, i64)> {
    journal.lines().filter_map(|line| {
        let mut words = line.rsplitn(3, ' ');
        let (fence, what) = (words.next()?.parse().ok()?, words.next()?);
        Some((words.next()?, what, fence))
    })
}

/// How often `what` (`start` or `end`) of a task is in a journal.
pub fn count(journal: &str, id: &str, what: &str) -> usize {
    lines(journal).filter(|line| (line.0, line.1) == (id, what)).count()
}

/// The configuration; `more` holds further tables.
pub fn config(redis: &str, postgres: &str, folder: &str, concurrency: usize, more: &str) -> String {
    let (journal, gate) = (journal_path(folder), gate_path(folder));
    format!(
        r#"
[redis]
url = "{redis}"

[postgres]
url = "{postgres}"

[[queue]]
name = "{QUEUE}"
concurrency = {concurrency}

[handler.sleep]
type = "exec"
command = ["/bin/sh", "-c", '''
read -r seconds
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> {journal}
sleep "$seconds"
echo "$QUEUE_WORKER_TASK_ID end $QUEUE_WORKER_FENCE" >> {journal}
echo "fence $QUEUE_WORKER_FENCE"
''']

[handler.gate]
type = "exec"
command = ["/bin/sh", "-c", '''
echo "$QUEUE_WORKER_TASK_ID start $QUEUE_WORKER_FENCE" >> {journal}
until [ -e {gate} ] || [ -e {gate}-$QUEUE_WORKER_FENCE ]; do sleep 0.05; done
echo "$QUEUE_WORKER_TASK_ID end $QUEUE_WORKER_FENCE" >> {journal}
echo "fence $QUEUE_WORKER_FENCE"
''']

[handler.effect]
type = "sql"
statement = "INSERT INTO effects (task_id, fence) VALUES ($2, $3)"
{more}
"#
    )
}
