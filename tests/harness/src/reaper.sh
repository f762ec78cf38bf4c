# Reads "began <pid> <folder or ->" and "ended <pid>". When the pipe closes, kills who is left and removes their folders.
# Folders may hold white space: read gives the rest of the line to its last name.
trap '' INT TERM HUP
running=
while read -r verb pid folder; do
    case $verb in
        began) running="$running
$pid $folder" ;;
        ended) running=$(printf '%s\n' "$running" | grep -v "^$pid ") ;;
    esac
done
printf '%s\n' "$running" | while read -r pid folder; do
    [ -n "$pid" ] || continue
    kill -9 "$pid" 2>/dev/null
    case $folder in */lock-test-*) rm -rf "$folder" ;; esac
done
