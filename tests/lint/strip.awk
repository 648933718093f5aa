# strip.awk - blank the comments and literals of C (-v keep=code), or all but
# the comments (-v keep=comments). Prints file:line:text.
FNR == 1 { in_comment = 0 }
{
    out = ""
    n = length($0)
    for (i = 1; i <= n; ) {
        c = substr($0, i, 1)
        two = substr($0, i, 2)
        if (in_comment && two == "*/") {
            in_comment = 0
            out = out " "
            i += 2
        } else if (in_comment) {
            out = out (keep == "comments" ? c : " ")
            i++
        } else if (two == "/*") {
            in_comment = 1
            i += 2
        } else if (two == "//") {
            if (keep == "comments") out = out substr($0, i + 2)
            break
        } else if (c == "\"" || c == "'") {
            for (i++; i <= n && substr($0, i, 1) != c; i++)
                if (substr($0, i, 1) == "\\") i++
            i++
            if (keep == "code") out = out c c
        } else {
            if (keep == "code") out = out c
            i++
        }
    }
    print FILENAME ":" FNR ":" out
}
