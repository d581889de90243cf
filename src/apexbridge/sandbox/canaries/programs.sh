for program; do
  if command -v "$program" > /dev/null; then echo "$program"; fi
done
