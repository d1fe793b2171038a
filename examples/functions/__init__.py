"""Functions as jobs, an example a module. In two terminals:

headgate worker examples.functions.scraper:app --processes 2
python -m examples.functions.scraper
"""
