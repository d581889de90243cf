# Says that a shell is there.
echo "sh"
