#!/bin/sh
# Prints the checksums of a text and of files, which of them are the same, and whether they are what was expected.
set -eu
LC_ALL=C # bytes, whatever the text's language
export LC_ALL

scripts=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Input that is too large for a variable comes by stdin only.
read_input() {
    if [ -n "${INPUT_JSON:-}" ]; then printf '%s' "$INPUT_JSON"; else cat; fi
}

# The algorithm that is asked for, else the one whose checksums are as long as the expected one.
choose_algorithm() {
    if [ -f "$work/algorithm" ]; then
        tr 'A-Z' 'a-z' <"$work/algorithm" | tr -d -- '-\n'
    elif [ -f "$work/expected" ]; then
        awk 'NF { print length($1); exit }' "$work/expected" |
            sed 's/^32$/md5/; s/^40$/sha1/; s/^64$/sha256/; s/^128$/sha512/'
    else
        echo sha256
    fi
}

# Lines of "checksum  name", by name; the text that was given has no name and comes first.
list_checksums() {
    if [ -f "$work/text" ]; then "$tool" <"$work/text" | sed 's/  -$/  (text)/'; fi
    if [ $# -gt 0 ]; then
        (cd input && "$tool" -- "$@")
    elif [ -d input ]; then
        (cd input && find . -type f -exec "$tool" {} +) | sed 's|  \./|  |' | sort -k 2
    fi
}

# Any length but the algorithm's own, or anything that is not hexadecimal, was copied badly or made otherwise.
check_expected() {
    awk -v length_wanted="$(printf '' | "$tool" | awk '{ print length($1) }')" -v algorithm="$algorithm" '
        NF && (length($1) != length_wanted || tolower($1) ~ /[^0-9a-f]/) {
            print "\"expected\" holds something that is no " algorithm " checksum: " substr($1, 1, 40)
            exit
        }' "$1"
}

report() {
    echo "algorithm: $algorithm"
    cat "$work/sums"
    awk '
        function name_in(line) {
            sub(/^[^ ]+ +[*]?([.]\/)?/, "", line)
            return line
        }
        FNR == NR {
            name = name_in($0)
            sums[name] = $1
            names[$1] = ($1 in names) ? names[$1] " = " name : name
            if (names[$1] == name) order[++distinct] = $1
            next
        }
        FNR == 1 {
            identical()
            identical_shown = 1
        }
        NF == 1 { print "expected " tolower($1) ": " ((tolower($1) in names) ? "found, " names[tolower($1)] : "NOT FOUND") }
        NF > 1 {
            name = name_in($0)
            if (!(name in sums)) print "expected " name ": MISSING"
            else print "expected " name ": " (sums[name] == tolower($1) ? "OK" : "DIFFERENT")
        }
        function identical(    i) {
            for (i = 1; i <= distinct; i++) if (names[order[i]] ~ / = /) print "identical: " names[order[i]]
        }
        END { if (!identical_shown) identical() }
    ' "$work/sums" "$work/expected"
}

read_input | awk -v folder="$work" -v wanted="text algorithm expected" -f "$scripts/json_fields.awk"

algorithm=$(choose_algorithm)
case $algorithm in
    md5 | sha1 | sha256 | sha512) tool=${algorithm}sum ;;
    *) fail 'Choose one of these algorithms: md5, sha1, sha256, sha512.' ;;
esac

if [ -f "$work/expected" ]; then
    tr -d '\r' <"$work/expected" >"$work/clean"
    mv "$work/clean" "$work/expected"
    problem=$(check_expected "$work/expected")
    if [ -n "$problem" ]; then fail "$problem"; fi
else
    : >"$work/expected"
fi

# Arguments choose among the files; each may be written with or without the folder they lie in.
for name; do
    shift
    name=${name#input/}
    [ -f "input/$name" ] || fail "There is no file $name in input/."
    set -- "$@" "$name"
done

list_checksums "$@" >"$work/sums"
[ -s "$work/sums" ] || fail 'There is nothing to check: give "text", or attach files.'
report

if grep -qv '  (text)$' "$work/sums"; then
    mkdir -p output
    grep -v '  (text)$' "$work/sums" >"output/$(echo "$algorithm" | tr 'a-z' 'A-Z')SUMS"
fi
