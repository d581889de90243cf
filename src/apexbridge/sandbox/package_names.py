"""Which package provides a Python module or a program. Only well-known ones: a wrong guess installs another's code."""

from packaging.utils import canonicalize_name

_RENAMED = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "Cryptodome": "pycryptodomex",
    "Levenshtein": "Levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "PyPDF2": "PyPDF2",
    "absl": "absl-py",
    "argon2": "argon2-cffi",
    "attr": "attrs",
    "azure.ai.projects": "azure-ai-projects",
    "azure.cosmos": "azure-cosmos",
    "azure.identity": "azure-identity",
    "azure.keyvault.secrets": "azure-keyvault-secrets",
    "azure.storage.blob": "azure-storage-blob",
    "barcode": "python-barcode",
    "bidi": "python-bidi",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "deepgram": "deepgram-sdk",
    "discord": "discord.py",
    "docx": "python-docx",
    "docx2txt": "docx2txt",
    "dotenv": "python-dotenv",
    "ebooklib": "EbookLib",
    "email_validator": "email-validator",
    "eth_account": "eth-account",
    "ffmpeg": "ffmpeg-python",
    "fitz": "PyMuPDF",
    "flask_cors": "Flask-Cors",
    "flask_talisman": "flask-talisman",
    "git": "GitPython",
    "github": "PyGithub",
    "google.auth": "google-auth",
    "google.cloud.bigquery": "google-cloud-bigquery",
    "google.cloud.storage": "google-cloud-storage",
    "google.genai": "google-genai",
    "google.generativeai": "google-generativeai",
    "google.oauth2": "google-auth",
    "google.protobuf": "protobuf",
    "google_auth_oauthlib": "google-auth-oauthlib",
    "googleapiclient": "google-api-python-client",
    "grpc": "grpcio",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "kafka": "kafka-python",
    "langchain_anthropic": "langchain-anthropic",
    "langchain_chroma": "langchain-chroma",
    "langchain_community": "langchain-community",
    "langchain_core": "langchain-core",
    "langchain_openai": "langchain-openai",
    "langchain_pinecone": "langchain-pinecone",
    "llama_index": "llama-index",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "mysql.connector": "mysql-connector-python",
    "nacl": "PyNaCl",
    "odf": "odfpy",
    "opentelemetry": "opentelemetry-api",
    "pdfminer": "pdfminer.six",
    "pkg_resources": "setuptools",
    "playwright": "playwright",
    "pptx": "python-pptx",
    "prometheus_client": "prometheus-client",
    "psycopg2": "psycopg2-binary",
    "pydantic_ai": "pydantic-ai",
    "pydantic_settings": "pydantic-settings",
    "pylab": "matplotlib",
    "pymupdf": "PyMuPDF",
    "pyrsistent": "pyrsistent",
    "pythoncom": "pywin32",
    "pytorch_lightning": "pytorch-lightning",
    "qdrant_client": "qdrant-client",
    "rest_framework": "djangorestframework",
    "rouge_score": "rouge-score",
    "sarif": "sarif-tools",
    "scvi": "scvi-tools",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skbio": "scikit-bio",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slack_bolt": "slack-bolt",
    "slack_sdk": "slack-sdk",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "speech_recognition": "SpeechRecognition",
    "tdc": "PyTDC",
    "telegram": "python-telegram-bot",
    "tree_sitter": "tree-sitter",
    "umap": "umap-learn",
    "usb": "pyusb",
    "weaviate": "weaviate-client",
    "websocket": "websocket-client",
    "whisper": "openai-whisper",
    "win32com": "pywin32",
    "wx": "wxPython",
    "xlsxwriter": "XlsxWriter",
    "yaml": "PyYAML",
    "yara": "yara-python",
    "youtube_transcript_api": "youtube-transcript-api",
    "yt_dlp": "yt-dlp",
    "zmq": "pyzmq",
}
_SAME_NAME_TEXT = """
accelerate aiofiles aiohttp aiosqlite altair anndata anthropic anyio arrow arxiv asyncpg atheris atproto babel
base58 bcrypt bitsandbytes black bokeh boto3 botocore bottle cachetools cairosvg cbor2 celery certifi chardet
charset_normalizer chess chromadb click cohere colorama coverage crewai cryptography cupy cycler dask datamol
datasets deepchem deepspeed defusedxml diffusers distributed django docling docxtpl duckdb edge_tts einops
elevenlabs emoji et_xmlfile evaluate fabric faiss fake_useragent fastapi fastmcp feedparser filelock fire flask
folium fonttools fpdf2 freezegun fsspec ftfy gensim geopandas gevent gitlab gradio graphviz gunicorn gymnasium h5py
hdbscan html2text html5lib httplib2 httpx huggingface_hub humanize hypothesis idna ijson imagehash imageio
imapclient inflect ipython itsdangerous jieba jinja2 joblib jsonlines jsonpatch jsonpath_ng jsonpointer jsonschema
keras kiwisolver langchain langdetect langfuse langgraph librosa lightgbm litellm loguru lxml mammoth manim markdown
markdown2 markdownify markitdown markupsafe matplotlib mcp mido mistune mlflow more_itertools moviepy mss multidict
music21 mutagen mutmut mypy nbformat networkx newspaper3k nltk notebook numba numexpr numpy odfpy ollama onnxruntime
openai openmm openpyxl orjson outlines packaging pandas paramiko passlib patsy pdf2docx pdf2image pdfkit pdfplumber
peewee peft pendulum pexpect pikepdf pingouin plotly pluggy polars praw pre_commit prettytable prompt_toolkit
protobuf psutil psycopg py7zr pyarrow pyautogui pycountry pydantic pydicom pydot pydub pygments pymatgen pymc
pymongo pymoo pymysql pyopenms pyparsing pypdf pypdfium2 pyperclip pypinyin pyspark pysrt pytesseract pytest pytz
qrcode questionary rapidfuzz ray rdkit redis regex replicate reportlab requests requests_toolbelt responses retry
rich ruff safetensors scanpy scipy scrapy seaborn selenium selectolax semgrep sentencepiece sentry_sdk setuptools
shap shapely shodan simpy six soundfile spacy spotipy sqlalchemy sqlmodel sqlparse starlette statsmodels streamlit
stripe svgwrite sympy tabulate temporalio tenacity tensorboard tensorflow termcolor textblob textual tiktoken timm
tinycss2 tokenizers toml tomli tomlkit torch torchaudio torchvision tornado tqdm trafilatura transformers trl tweepy
twilio typer typing_extensions tzdata tzlocal ujson ultralytics unidecode unsloth unstructured urllib3 uvicorn
uvloop validators vllm wandb watchdog watchfiles wcwidth weasyprint web3 websockets werkzeug wordcloud xarray
xgboost xlrd xlsx2csv xlwings xlwt xmltodict xxhash yfinance zarr zstandard
"""
_SAME_NAME = frozenset(_SAME_NAME_TEXT.split())
SYSTEM_PACKAGES = {
    "7z": "p7zip-full",
    "antiword": "antiword",
    "bc": "bc",
    "cargo": "cargo",
    "catdoc": "catdoc",
    "chromium": "chromium",
    "cmake": "cmake",
    "convert": "imagemagick",
    "curl": "curl",
    "dig": "dnsutils",
    "docker": "docker.io",
    "dot": "graphviz",
    "ebook-convert": "calibre",
    "exiftool": "libimage-exiftool-perl",
    "fc-list": "fontconfig",
    "ffmpeg": "ffmpeg",
    "ffprobe": "ffmpeg",
    "file": "file",
    "g++": "g++",
    "gcc": "gcc",
    "gdb": "gdb",
    "gh": "gh",
    "git": "git",
    "go": "golang-go",
    "gs": "ghostscript",
    "hunspell": "hunspell",
    "identify": "imagemagick",
    "inkscape": "inkscape",
    "java": "default-jre-headless",
    "jq": "jq",
    "latexmk": "latexmk",
    "libreoffice": "libreoffice",
    "lsof": "lsof",
    "lualatex": "texlive-luatex",
    "make": "make",
    "mogrify": "imagemagick",
    "node": "nodejs",
    "npm": "npm",
    "npx": "npm",
    "openssl": "openssl",
    "pandoc": "pandoc",
    "pdfimages": "poppler-utils",
    "pdfinfo": "poppler-utils",
    "pdflatex": "texlive-latex-base",
    "pdfseparate": "poppler-utils",
    "pdftk": "pdftk-java",
    "pdftocairo": "poppler-utils",
    "pdftohtml": "poppler-utils",
    "pdftoppm": "poppler-utils",
    "pdftotext": "poppler-utils",
    "pdfunite": "poppler-utils",
    "perl": "perl",
    "php": "php-cli",
    "psql": "postgresql-client",
    "qpdf": "qpdf",
    "rg": "ripgrep",
    "rsvg-convert": "librsvg2-bin",
    "rsync": "rsync",
    "ruby": "ruby",
    "shellcheck": "shellcheck",
    "soffice": "libreoffice",
    "sox": "sox",
    "sqlite3": "sqlite3",
    "ssh": "openssh-client",
    "tesseract": "tesseract-ocr",
    "tmux": "tmux",
    "tree": "tree",
    "unrar": "unrar-free",
    "unzip": "unzip",
    "wget": "wget",
    "wkhtmltopdf": "wkhtmltopdf",
    "xelatex": "texlive-xetex",
    "xmllint": "libxml2-utils",
    "zip": "zip",
}
"""The Debian package of each program."""
PROGRAM_NOTES = {
    "magick": "It belongs to ImageMagick 7. The imagemagick of Debian 12 is version 6: call convert instead.",
}
"""What to say about a program that has no package on every Debian."""
_COMMON_PROGRAMS_TEXT = """
. : [ [[ alias awk base64 basename bash bg bind break builtin caller cat cd chgrp chmod chown cksum cmp column comm
command compgen complete continue cp cut date dd declare df diff dir dirname dirs disown du echo egrep enable env
eval exec exit expand export expr factor false fc fg fgrep find fold getconf getopt getopts grep groups gunzip gzip
hash head help history hostname iconv id install jobs join kill last less let ln local locale logger logname logout
ls mapfile md5sum mkdir mkfifo mktemp more mv nice nl nohup nproc numfmt od paste patch pip pip3 popd printenv
printf ps pushd pwd python python3 read readarray readlink readonly realpath return rm rmdir script sed select seq
set sh sha1sum sha256sum sha512sum shift shopt shred shuf sleep sort source split stat stdbuf stty sudo sum sync tac
tail tar tee test times touch tput tr trap true truncate tty type typeset ulimit umask unalias uname unexpand uniq
unset uptime users wait watch wc which who whoami xargs xz yes zcat zsh
"""
COMMON_PROGRAMS = frozenset(_COMMON_PROGRAMS_TEXT.split())
"""Built into the shell, or on every host."""


def distribution_of(module: str) -> str | None:
    """The distribution that provides a module, such as `PIL.Image` or `google.cloud.storage`; None if unknown."""
    parts = module.split(".")[:4]
    for length in range(len(parts), 0, -1):
        if found := _RENAMED.get(".".join(parts[:length])):
            return canonicalize_name(found)
    return canonicalize_name(parts[0]) if parts[0] in _SAME_NAME else None
