# Writes the string fields of a JSON object named in `fields` to files in `folder`, one file each.
#
# Quotes are the record separator, so records alternate between structure and text, and a text of many megabytes is
# split into records that every awk can handle. Run it with LC_ALL=C, so that it counts bytes.

BEGIN {
    RS = "\""
    ORS = ""
    split(fields, names, " ")
    for (i in names) is_field[names[i]] = 1
    for (i = 0; i < 16; i++) digit[substr("0123456789abcdef", i + 1, 1)] = i
    plain["n"] = "\n"; plain["t"] = "\t"; plain["r"] = "\r"; plain["b"] = "\b"; plain["f"] = "\f"; plain["/"] = "/"
}

!in_text {
    structure($0)
    in_text = 1
    next
}

{
    texts++
    # A quote after an odd number of backslashes is part of the text.
    end = length($0)
    while (end > 0 && substr($0, end, 1) == "\\") end--
    escaped = (length($0) - end) % 2
    decode(escaped ? substr($0, 1, length($0) - 1) : $0)
    if (escaped) {
        emit("\"")
    } else {
        finish_text()
        in_text = 0
    }
}

END {
    if (failed) exit 1
    if (!begun && !texts) exit 0  # empty input means an object without fields
    if (!begun || depth != 0) fail("The input is not valid JSON.")
}

# The structure between two texts: opens and closes objects and lists, and determines whether a key or a value follows.
function structure(piece,    last) {
    gsub(/[ \t\r\n]/, "", piece)
    if (piece == "") return
    if (!begun && substr(piece, 1, 1) != "{") fail("The input must be a JSON object.")
    begun = 1
    if (depth == 1 && expects_value && piece != ":" && (key in is_field) && substr(piece, 1, 5) != ":null") {
        fail("\"" key "\" must be text.")
    }
    last = substr(piece, length(piece), 1)
    depth += gsub(/[{[]/, "&", piece) - gsub(/[]}]/, "&", piece)
    if (depth == 1) expects_value = (last == ":")
    keep = depth == 1 && expects_value && (key in is_field)
    if (depth == 1 && !expects_value) key = ""
    if (keep) printf "" > (folder "/" key)
}

# The end of a text: a key determines the next value.
function finish_text() {
    if (keep) close(folder "/" key)
    keep = 0
    if (depth == 1) expects_value = !expects_value
}

function emit(text) {
    if (keep) print text > (folder "/" key)
    else if (depth == 1 && !expects_value) key = key text
}

function decode(piece,    parts, count, i, letter) {
    count = split(piece, parts, /\\/)
    emit(parts[1])
    for (i = 2; i <= count; i++) {
        letter = substr(parts[i], 1, 1)
        if (letter == "") {
            # Two backslashes encode one; the character after them is not an escape.
            emit("\\")
            emit(parts[++i])
        } else if (letter in plain) {
            emit(plain[letter] substr(parts[i], 2))
        } else if (letter == "u") {
            i += unicode(parts[i], parts[i + 1])
        } else {
            fail("The input is not valid JSON.")
        }
    }
}

# Writes uXXXX and the text after it as UTF-8. Returns 1 if the next part was the second half of a surrogate pair.
function unicode(part, following,    code, low) {
    code = hexadecimal(substr(part, 2, 4))
    if (code >= 55296 && code <= 57343) {
        low = substr(following, 1, 1) == "u" && length(part) == 5 ? hexadecimal(substr(following, 2, 4)) : 0
        if (code > 56319 || low < 56320 || low > 57343) fail("The text holds half a character (a lone surrogate).")
        emit(utf8((code - 55296) * 1024 + low - 56320 + 65536) substr(following, 6))
        return 1
    }
    if (code == 0) fail("The text holds a NUL character; pass it as a file.")
    emit(utf8(code) substr(part, 6))
    return 0
}

function utf8(code) {
    if (code < 128) return sprintf("%c", code)
    if (code < 2048) return sprintf("%c%c", 192 + int(code / 64), 128 + code % 64)
    if (code < 65536) return sprintf("%c%c%c", 224 + int(code / 4096), 128 + int(code / 64) % 64, 128 + code % 64)
    return sprintf("%c", 240 + int(code / 262144)) \
        sprintf("%c%c%c", 128 + int(code / 4096) % 64, 128 + int(code / 64) % 64, 128 + code % 64)
}

function hexadecimal(text,    value, i) {
    if (text !~ /^[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]$/) fail("The input is not valid JSON.")
    text = tolower(text)
    for (i = 1; i <= 4; i++) value = value * 16 + digit[substr(text, i, 1)]
    return value
}

function fail(message) {
    print message "\n" | "cat >&2"  # not every awk supports /dev/stderr, and a sandbox may not have it
    close("cat >&2")
    failed = 1
    exit 1
}
