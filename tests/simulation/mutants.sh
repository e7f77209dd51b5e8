#!/usr/bin/env bash
# Breaks the worker's own code, one rule at a time, and expects the simulation to notice.
#
# `mutation.rs` plays wrong workers at the border to the stores, in each run of the suite. This goes
# further and takes minutes: each mutant is compiled, the first with all it needs. Works on a copy of
# the last commit. Arguments: names of mutants; all without.
set -euo pipefail
cd "$(dirname "$0")/../.."
# A folder of its own: cargo takes what is newer than the sources for fresh, also what a mutant left.
target=$PWD/target/mutants
seeds=${QW_SIM_SEEDS:-2000}
copy=$(mktemp -d)
trap 'git worktree remove --force "$copy/tree"; rm -rf "$copy"' EXIT
git worktree add --quiet --detach "$copy/tree" HEAD
missed=()

# mutant NAME FILE PERL: applies a substitution over the whole file, and runs the seeds.
mutant() {
    local name=$1 file=$2 change=$3
    if ((${#wanted[@]})) && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
    git -C "$copy/tree" checkout --quiet -- .
    perl -0pi -e "$change" "$copy/tree/$file"
    if git -C "$copy/tree" diff --quiet; then
        echo "$name: the code has changed, mend this mutant" >&2
        exit 1
    fi
    if ! (cd "$copy/tree" && CARGO_TARGET_DIR=$target cargo test --quiet --test simulation --no-run 2>"$copy/log"); then
        cat "$copy/log" >&2
        exit 1
    fi
    if (cd "$copy/tree" && CARGO_TARGET_DIR=$target QW_SIM_SEEDS=$seeds \
        cargo test --quiet --test simulation seeds_ -- --test-threads 2 >"$copy/out" 2>&1); then
        echo "$name: NOT NOTICED"
        missed+=("$name")
    else
        echo "$name: $(grep -m1 -E '^at [0-9]+ ms' "$copy/out" | cut -c1-120)"
    fi
}

wanted=("$@")
mutant entered_twice src/worker/shared.rs \
    's/tasks\.insert\(id\.clone\(\)\)\.then\(\|\| (Here \{.*?\})\)/{ tasks.insert(id.clone()); Some($1) }/s'
mutant beat_not_awaited src/worker/heartbeat/beats.rs \
    's/if current % 2 == 1 \{/if current % 2 == 7 {/'
mutant effects_after_the_deadline src/protocol/lease_clock.rs \
    's/now < self\.deadline\(\)/now < self.deadline() + Duration::from_secs(3600)/'
mutant deadline_from_the_answer src/worker/heartbeat/beats.rs \
    's/(run\.alive\.lease\.confirm\()sent/$1self.clock.now()/'
mutant leases_not_renewed src/worker/heartbeat/mod.rs \
    's/renew_leases\(beats, stores, ids, held, pace\.interval\)\.await;/let _ = (stores, ids, held);/'
mutant leave_acknowledges src/worker/parting.rs \
    's/Exit::Leave => Box::pin\(self\.after_release\(lock, async \{\}\)\)\.await,/Exit::Leave => { tokio::join!(self.acknowledge(delivery), self.unlock(lock)); }/'
mutant running_is_acknowledged src/worker/parting.rs \
    's/Claimed::Running \{ remaining \} => Exit::Postpone\(remaining\)/Claimed::Running { .. } => Exit::Acknowledge/'
mutant errors_are_acknowledged src/worker/executor.rs \
    's/(LedgerError::Conflict \{ \.\. \} => )Exit::HandOver/$1Exit::Acknowledge/'
mutant drain_burns_an_attempt src/protocol/settle.rs \
    's/Interruption::Drain \| //; s/\(Some\(Err\(failure\)\), None\)/(Some(Err(failure)), None | Some(Interruption::Drain))/; s/\(None, None\)/(None, None | Some(Interruption::Drain))/'
mutant not_unlocked src/worker/parting.rs \
    's/self\.context\.stores\.leases\.release\(&lock\)\.await/Ok::<(), crate::connection::RedisError>(drop(lock))/'
# The order alone only costs time: a row that was marked is looked after, and its entry is missed then.
mutant marked_before_added src/worker/maintenance.rs \
    's/Ok\(None\) => queue\.append\(&due\.queue, &due\.raw\)\.await,/Ok(None) => { let id = crate::domain::EntryId { ms: 0, seq: 1 }; let _ = self.context.stores.ledger.promoted(&due, id).await; queue.append(&due.queue, &due.raw).await }/; s/queue\.contains\(&due\.queue, entry\)\.await\.map\(\|there\| there\.then_some\(entry\)\)/Ok(Some(entry))/'
mutant nothing_is_promoted src/worker/maintenance.rs \
    's/self\.promote\(\)\.await;/if false { self.promote().await; }/'
mutant orphans_stay src/worker/fetcher.rs \
    's/if now >= self\.next_sweep/if now > now && now >= self.next_sweep/'
mutant conflict_runs_away src/worker/parting.rs \
    's/Claimed::Conflict => self\.refuse\(delivery, task\)\.await/Claimed::Conflict => Exit::Acknowledge/'
mutant never_condemned src/worker/parting.rs \
    's/Claimed::Poisoned \{ crashes \} => self\.condemn\(task, crashes\)\.await/Claimed::Poisoned { .. } => Exit::Postpone(LOOK_AGAIN)/'
mutant stale_is_a_success src/ledger/memory/outcome.rs \
    's/if recorded \{ Recorded::Committed \} else \{ Recorded::Stale \}/{ let _ = recorded; Recorded::Committed }/'

if ((${#missed[@]})); then
    echo "not noticed: ${missed[*]}" >&2
    exit 1
fi
