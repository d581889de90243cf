# Read by `python` on the PATH of runs. Python finds the packages of the run, also if the caller has set PYTHONPATH, and
# a script of a loaded skill finds the modules of its own skill first.
if [ -n "$SKILLS_PYTHONPATH" ]; then
  case ":$PYTHONPATH:" in
    *":$SKILLS_PYTHONPATH:"*) ;;
    *) PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$SKILLS_PYTHONPATH ;;
  esac
  case $1 in
    "${SKILLS_PATH:=/skills}"/*/*)
      skill=${1#"$SKILLS_PATH"/}
      skill=${skill%%/*}
      case $skill in
        *:*) skill=${skill%%:*}.${skill#*:} ;; # its mount point without a colon, which separates paths
      esac
      PYTHONPATH=$SKILLS_PATH/$skill:$PYTHONPATH
      ;;
  esac
  export PYTHONPATH
fi
