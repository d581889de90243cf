#!/bin/sh
# Prints the checksums of a text and of files, lists duplicates, and compares with expected checksums.
set -eu
LC_ALL=C # compare bytes, independent of the locale
export LC_ALL

scripts=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Input that is too large for a variable is sent on stdin only.
read_input() {
    if [ -n "${INPUT_JSON:-}" ]; then printf '%s' "$INPUT_JSON"; else cat; fi
}

# The requested algorithm, otherwise the one whose checksums have the length of the expected one.
choose_algorithm() {
    if [ -f "$work/algorithm" ]; then
        tr 'A-Z' 'a-z' <"$work/algorithm" | tr -d -- '-'
        return
    fi
    case $(awk 'NF { print length($1); exit }' "$work/expected") in
        32) echo md5 ;;
        40) echo sha1 ;;
        128) echo sha512 ;;
        *) echo sha256 ;;
    esac
}

# Lines of "checksum  name", sorted by name; the input text has no name and comes first.
list_checksums() {
    if [ -f "$work/text" ]; then "$tool" <"$work/text" | sed 's/  -$/  (text)/'; fi
    if [ $# -gt 0 ]; then
        (cd input && "$tool" -- "$@")
    elif [ -d input ]; then
        (cd input && find . -type f -exec "$tool" {} +) | sed 's|  \./|  |' | sort -k 2
    fi
}

# The problem with the expected checksums, if any: truncated, or of another algorithm.
expected_problem() {
    awk -v digits="$(printf '' | "$tool" | awk '{ print length($1) }')" -v algorithm="$algorithm" '
        NF && (length($1) != digits || tolower($1) ~ /[^0-9a-f]/) {
            print "\"expected\" holds something that is no " algorithm " checksum: " substr($1, 1, 40)
            exit
        }' "$work/expected"
}

list_identical() {
    awk '
        { name = $0; sub(/^[^ ]+  /, "", name) }
        $1 in names { names[$1] = names[$1] " = " name; repeated[$1] = 1; next }
        { names[$1] = name; order[++count] = $1 }
        END { for (i = 1; i <= count; i++) if (order[i] in repeated) print "identical: " names[order[i]] }
    ' "$work/sums"
}

# Each expected line is a checksum alone, which may match any input, or one with a name, as in a SHA256SUMS file.
compare_with_expected() {
    awk '
        { sum = tolower($1); name = $0; sub(/^[^ ]+ +[*]?([.]\/)?/, "", name) }
        FNR == NR { sum_of[name] = sum; if (!(sum in name_of)) name_of[sum] = name; next }
        NF == 1 { print "expected " sum ": " (sum in name_of ? "FOUND, " name_of[sum] : "NOT FOUND") }
        NF > 1 { print "expected " name ": " (!(name in sum_of) ? "MISSING" : sum_of[name] == sum ? "OK" : "DIFFERENT") }
    ' "$work/sums" "$work/expected"
}

read_input | awk -v folder="$work" -v fields="text algorithm expected" -f "$scripts/json_fields.awk"

touch "$work/expected"
tr -d '\r' <"$work/expected" >"$work/unix" && mv "$work/unix" "$work/expected"

algorithm=$(choose_algorithm)
case $algorithm in
    md5 | sha1 | sha256 | sha512) tool=${algorithm}sum ;;
    *) fail 'Choose one of these algorithms: md5, sha1, sha256, sha512.' ;;
esac
problem=$(expected_problem)
[ -z "$problem" ] || fail "$problem"

# Arguments select files, with or without the folder name.
for name do
    shift
    name=${name#input/}
    [ -f "input/$name" ] || fail "There is no file $name in input/."
    set -- "$@" "$name"
done

list_checksums "$@" >"$work/sums"
[ -s "$work/sums" ] || fail 'There is nothing to check: give "text", or attach files.'

echo "algorithm: $algorithm"
cat "$work/sums"
list_identical
compare_with_expected

if grep -v '  (text)$' "$work/sums" >"$work/of-files"; then
    mkdir -p output
    cp "$work/of-files" "output/$(echo "$algorithm" | tr 'a-z' 'A-Z')SUMS"
fi
