-- Tags are now derived for skills that declare none: have every folder looked at again.
UPDATE skills SET signature = '';
