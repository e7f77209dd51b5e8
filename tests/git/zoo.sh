#!/bin/sh
# Builds small odd repositories below the folder $1, one for each oddity, with reproducible ids.
# zoo.jsonl holds what git itself says of their commits with every setting pinned: bare access, no
# attributes, no replacement refs, myers, -M50% -l1000, against the first parent.
set -eu

root=$1
mkdir -p "$root"
cd "$root"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME='A U Thor' GIT_AUTHOR_EMAIL=a@example.com
export GIT_COMMITTER_NAME='C O Mitter' GIT_COMMITTER_EMAIL=c@example.com
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
export TZ=UTC LC_ALL=C

enter() { git init -q -b main "$root/$1" && cd "$root/$1"; }
commit() { git add -A . && git commit -q -m "$1"; }
mark() { git tag "${2:-$1}"; }
step() { commit "$1" && mark "$1"; }
# Stores standard input as a commit object, whatever it looks like.
raw_commit() { git hash-object -t commit -w --literally --stdin; }
tree_of() { printf 'tree %s\n' "$(git rev-parse "$1^{tree}")"; }

# Author and message in the encoding that the header names.
enter enc
echo a >f; commit base
raw=$({
  tree_of HEAD
  printf 'parent %s\n' "$(git rev-parse HEAD)"
  printf 'author Ren\351 D <r@x> 1700000000 +0100\n'
  printf 'committer Ren\351 D <r@x> 1700000000 +0100\n'
  printf 'encoding ISO-8859-1\n\n\351t\351\n'
} | raw_commit)
git update-ref HEAD "$raw"

# A root, a commit without a change, one without a message.
enter empty
seq 1 3 >f; step root
git commit -q --allow-empty -m nothing; mark none
git commit -q --allow-empty --allow-empty-message -m ''; mark nomsg

# Merges: a clean one, one with an edit of its own, an octopus, one that keeps ours, one parent twice.
enter merge
: >base; commit base
for branch in a b c; do
  git checkout -q -b "$branch" main; echo "$branch" >"$branch"; commit "$branch"
done
git checkout -q main
git merge -q --no-ff -m clean a; mark clean
git merge -q --no-ff --no-commit b >/dev/null 2>&1; echo evil >evil; commit evil; mark evil
git checkout -q -B oct clean^1
git merge -q -m octopus a b c >/dev/null 2>&1; mark octopus
git checkout -q -B br-ours a
git merge -q -s ours -m ours b; mark oursm
raw=$({
  tree_of evil
  printf 'parent %s\n' "$(git rev-parse a)" "$(git rev-parse a)"
  printf 'author A <a@x> 1700000000 +0000\ncommitter A <a@x> 1700000000 +0000\n\ndup parents\n'
} | raw_commit)
git update-ref refs/tags/dupparent "$raw"

# Renames, a copy, modes and types.
enter rename
seq 1 100 >a; seq 200 300 >b; : >e; mkdir d; seq 1 40 >d/x; echo s >s
commit base; mark base
git mv a a2; step exact
git mv a2 a3; seq 1 90 >a3; commit edit; mark edited
git mv a3 t; git mv b a3; git mv t b; step swap
cp a3 a4; step copy
git mv e e2; step emptyrename
chmod +x s; step mode
rm s; ln -s /etc/passwd s; commit type; mark typechange
rm -r d; echo file >d; commit df; mark dirtofile

# A submodule without .gitmodules.
enter sub
echo a >f; commit base
link() { git update-index --add --cacheinfo "160000,$1,lib/x"; }
link 1111111111111111111111111111111111111111; git commit -q -m add; mark add
link 2222222222222222222222222222222222222222; git commit -q -m mod; mark mod
git rm -q --cached lib/x; git commit -q -m del; mark del

# Binary: a NUL early on, one behind the part that git looks at, and one that only attributes claim.
enter bin
lines() { yes x | head -n "$1"; printf '\0\n'; }
printf 'a\0b\n' >early; lines 5000 >late; printf 'one\ntwo\n' >t.dat
echo '*.dat binary' >.gitattributes; step add
printf 'a\0c\n' >early; lines 5001 >late; printf 'one\n2\n' >t.dat; commit mod; mark mod

# Paths that are no text, or look like something else.
enter paths
one() { printf '1\n' >"./$1"; }
one "$(printf 'caf\351')"; one 'new
line'; one "$(printf 'ta\tb')"; one 'q"q'; one 'a => b'; one '{x => y}'; one -rf; one ':(top)x'
one ' lead'; one 'trail '; one "$(printf '\360\237\222\251')"
export GIT_LITERAL_PATHSPECS=1
step add
git mv -- 'a => b' 'c => d'; git commit -q -m ren; mark ren
unset GIT_LITERAL_PATHSPECS

# Dates and zones.
enter time
echo a >f; commit base
dated() {
  raw=$({
    tree_of HEAD
    printf 'parent %s\n' "$(git rev-parse HEAD)"
    printf 'author A <a@x> %s\ncommitter A <a@x> %s\n\n%s\n' "$2" "$2" "$1"
  } | raw_commit)
  git update-ref "refs/tags/$1" "$raw"
}
dated t2050 '2540000000 +0000'; dated t2120 '4733510400 -13068837'
dated tz3407 '1516956202 -3407'; dated nodate ''; dated zero '0 +0000'
dated halfhour '1700000000 +0545'

# A replacement that tells another story.
enter replace
for i in 1 2 3; do echo $i >f; commit c$i; done
mark real
seq 1 50 >f; git add f
other=$(git commit-tree "$(git write-tree)" -p HEAD~2 -m replaced)
git reset -q --hard; git replace HEAD "$other"

# The end of a shallow clone.
enter full
for i in 1 2 3 4 5; do seq 1 $((i * 10)) >f$i; commit c$i; done
git clone -q --bare --depth 2 "file://$root/full" "$root/shallow"

# What killed programs leave behind.
git clone -q --bare "$root/full" "$root/locks.git"
cd "$root/locks.git"
touch index.lock HEAD.lock config.lock packed-refs.lock shallow.lock refs/heads/main.lock
touch objects/pack/tmp_pack_abc objects/info/commit-graph.lock
mkdir -p objects/info/commit-graphs
echo 'fetch-pack 1 on host' >objects/pack/pack-0000000000000000000000000000000000000000.keep

# Damage: a blob that is gone, one that is empty, a parent that never was.
enter corrupt
object() { echo ".git/objects/$(echo "$1" | cut -c1-2)/$(echo "$1" | cut -c3-)"; }
echo one >f; echo keep >g; commit c1
echo two >f; commit c2; mark missingblob; rm -f "$(object "$(git rev-parse HEAD:f)")"
echo three >f; git commit -q -a -m c3
echo four >f; git commit -q -a -m c4; mark zeroblob
blob=$(object "$(git rev-parse HEAD:f)"); chmod u+w "$blob"; : >"$blob"
raw=$({
  tree_of HEAD~3
  printf 'parent %040d\n' 7
  printf 'author A <a@x> 1700000000 +0000\ncommitter A <a@x> 1700000000 +0000\n\nno parent here\n'
} | raw_commit)
echo "$raw" >.git/refs/tags/missingparent

# A configuration and attributes that would run programs and change what is counted.
enter hostile
seq 1 100 >a; git add a; git commit -q -m base
git mv a b; seq 1 99 >b; echo '* diff=evil' >.gitattributes; commit c2
git config diff.external "touch $root/PWNED-external;true"
git config diff.evil.textconv "touch $root/PWNED-textconv; cat"
git config core.fsmonitor "touch $root/PWNED-fsmonitor"
git config diff.renames false
git config diff.algorithm histogram
git config core.quotePath false
git config log.showSignature true
git config color.ui always

# Refs that look like options.
git clone -q --bare "$root/full" "$root/dash.git"
cd "$root/dash.git"
git update-ref -- 'refs/heads/--output=pwn' HEAD
git update-ref -- 'refs/heads/-n1' HEAD
