echo "sh"
